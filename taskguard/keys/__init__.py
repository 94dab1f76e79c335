"""Make the key of a call."""
