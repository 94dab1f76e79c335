"""The body that `rq_jobs.py` measures, in a module that imports nothing: a horse imports it anew for each job."""


def job(n: str) -> None:
    """Nothing: what is measured is what happens around it."""
