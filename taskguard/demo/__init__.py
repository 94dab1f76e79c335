"""The guard at work: `python -m taskguard.demo`."""
