"""taskguard: background work that happens once."""

__version__ = "0.1.0"
