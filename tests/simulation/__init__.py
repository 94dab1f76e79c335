"""Whole histories of one queue, by chance: the shipped machines over the shipped rules, in virtual time."""
