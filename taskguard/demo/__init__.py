"""`taskguard demo`: the guard with real workers, which the demo kills and stops."""
