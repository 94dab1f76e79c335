"""The resource's side of a fence: what refuses a holder that was replaced, where the data lives.

A fence reaches all of this through its own methods; modules here are imported when they are first used, so that the
core needs no driver.
"""
