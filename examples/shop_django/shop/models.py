"""Orders."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    email = models.EmailField()
    confirmed_by = models.TextField(default="")
    """The job that has confirmed it."""
