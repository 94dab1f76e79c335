"""Django: an app with a migration for the two tables, fields for models, and updates of querysets.

Put `"taskguard.fencing.django"` into `INSTALLED_APPS` and run `migrate`.
"""

from taskguard.fencing.django.fields import FenceField, VersionField
from taskguard.fencing.django.updates import fenced_update, versioned_update

__all__ = ["FenceField", "VersionField", "fenced_update", "versioned_update"]
