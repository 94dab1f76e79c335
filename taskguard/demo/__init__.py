"""The guard at work, with real workers that are killed and stopped: `taskguard demo`."""
