"""The guarded body that `rq_jobs.py` measures; its import brings what a project's own import would."""

from taskguard.rq import singleton_task


@singleton_task(key="n")
def job(n: str) -> None:
    """Nothing: what is measured is what happens around it."""
