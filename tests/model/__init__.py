"""Every interleaving of a few jobs, workers and faults over one key, with the real rules as the store.

`python -m tests.model` explores all configurations; with the name of a mutant, it shows what goes wrong without a rule.
"""
