"""The Django project whose database django-celery-beat keeps its entries in."""

from __future__ import annotations

import django
from django.conf import settings


def configure(path: str) -> None:
    if settings.configured:
        return
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {"timeout": 20}}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django_celery_beat"],
        USE_TZ=True,
        TIME_ZONE="UTC",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
