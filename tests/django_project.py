"""The one Django project of the tests: a process can have no second one, and runs tests of several parts."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import django
from django.conf import settings


def configure(path: str | None = None) -> None:
    """Its default database is the file at *path*, if nobody has configured it before."""
    if settings.configured:
        return
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": path or _file(),
                "OPTIONS": {"timeout": 20},
            }
        },
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django_celery_beat",
            "taskguard.fencing.django",
            "tests.fencing.shop",
        ],
        USE_TZ=True,
        TIME_ZONE="UTC",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def _file() -> str:
    directory = tempfile.mkdtemp(prefix="taskguard-django-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return str(Path(directory) / "db.sqlite3")
