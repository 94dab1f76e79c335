"""The history of each store: `taskguard.history.History`, kept beside the entries."""
