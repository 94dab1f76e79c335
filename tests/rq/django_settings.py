"""Settings of a Django project with django-rq, for `python -m django COMMAND --settings tests.rq.django_settings`."""

from __future__ import annotations

import os

SECRET_KEY = "not a secret"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_rq"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
RQ_QUEUES = {os.environ["TASKGUARD_TEST_QUEUE"]: {"URL": os.environ["TASKGUARD_TEST_URL"]}}
RQ = {"QUEUE_CLASS": "tests.rq.django_queues.ByName", "WORKER_CLASS": "taskguard.rq.GuardedWorker"}
