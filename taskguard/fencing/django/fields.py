"""Fields for the user's own models."""

from __future__ import annotations

from typing import Any

from django.db import models


class _Counted(models.BigIntegerField):  # type: ignore[misc]
    """A number that only `fenced_update` and `versioned_update` set, never a form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"default": 0, "editable": False, **kwargs})


class FenceField(_Counted):
    """The token of the holder that last changed the row: see `fenced_update`."""


class VersionField(_Counted):
    """A number that each change increments: see `versioned_update`."""
