from __future__ import annotations

from django.db import models

from taskguard.fencing.django import FenceField, VersionField


class Account(models.Model):
    id = models.CharField(max_length=9, primary_key=True)
    cents = models.BigIntegerField()
    fence = FenceField()
    version = VersionField()

    class Meta:
        app_label = "shop"
        db_table = "account"


class Booking(models.Model):
    account = models.OneToOneField(
        Account, models.DO_NOTHING, db_column="id", primary_key=True, db_constraint=False, related_name="booking"
    )
    cents = models.BigIntegerField()

    class Meta:
        app_label = "shop"
        db_table = "booking"
