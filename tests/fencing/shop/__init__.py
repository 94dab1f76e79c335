"""A Django app with one model of the user's own."""
