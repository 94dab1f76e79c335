"""A call becomes a key."""
