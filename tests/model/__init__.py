"""Every interleaving of a few jobs, workers and faults over one key, with the real rules as the store.

`python -m tests.model` explores all configurations; `python -m tests.model MUTANT` shows what goes wrong without a rule.
"""
