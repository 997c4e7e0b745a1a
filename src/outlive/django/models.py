"""outlive's views as models, for results and the admin. They are read-only, and no migration of Django makes them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

_VIEW = '"outlive"."{}"'


class Job(models.Model):
    """A job and its state: the view outlive.job_states."""

    id = models.UUIDField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    source = models.TextField()
    status = models.TextField()
    priority = models.SmallIntegerField(help_text="From 0, the most urgent, to 9. Django's priority 0 is 5 here.")
    attempt = models.IntegerField()
    failures = models.SmallIntegerField()
    crashes = models.SmallIntegerField()
    created_at = models.DateTimeField()
    ready_at = models.DateTimeField()
    locked_by = models.TextField("worker")
    locked_at = models.DateTimeField("running since")
    completed_at = models.DateTimeField()
    held_since = models.DateTimeField()
    error = models.TextField(db_column="error_message")

    class Meta:
        managed = False
        db_table = _VIEW.format("job_states")
        default_permissions: ClassVar = ("view",)
        permissions: ClassVar = (("operate_job", "Can retry, cancel and release jobs"),)
        ordering: ClassVar = ("-id",)

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class Request(models.Model):
    """A job as it was enqueued: the table outlive.jobs."""

    job = models.OneToOneField(Job, models.DO_NOTHING, primary_key=True, db_column="id")
    args = models.TextField()
    created_at = models.DateTimeField()
    ready_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = _VIEW.format("jobs")
        default_permissions = ()


class Attempt(models.Model):
    """An attempt that has ended: the view outlive.ended_attempts."""

    pk = models.CompositePrimaryKey("job_id", "attempt")
    job = models.ForeignKey(Job, models.DO_NOTHING, related_name="ended")
    attempt = models.IntegerField()
    outcome = models.TextField()
    error = models.TextField()
    stack = models.TextField()
    worker = models.TextField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    result = models.TextField()

    class Meta:
        managed = False
        db_table = _VIEW.format("ended_attempts")
        default_permissions = ()


class Worker(models.Model):
    """A worker, live or dead: the view outlive.worker_states."""

    id = models.UUIDField(primary_key=True)
    name = models.TextField()
    hostname = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    state = models.TextField()
    slots = models.IntegerField()
    running = models.IntegerField()
    busy_slots = models.IntegerField()
    started_at = models.DateTimeField()
    last_seen = models.DateTimeField()
    trouble = models.TextField()

    class Meta:
        managed = False
        db_table = _VIEW.format("worker_states")
        default_permissions: ClassVar = ("view",)
        ordering: ClassVar = ("-started_at",)

    def __str__(self) -> str:
        return str(self.name)


class Killer(models.Model):
    """A job in quarantine, with the evidence of its last kill: the view outlive.killers."""

    id = models.UUIDField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    quarantined_at = models.DateTimeField()
    details = models.TextField()
    crashes = models.SmallIntegerField()
    losses = models.SmallIntegerField()
    outcome = models.TextField()
    signal = models.TextField()
    error = models.TextField(db_column="error_message")
    stack = models.TextField()
    output = models.TextField()
    killed_on = models.TextField()
    last_kill_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = _VIEW.format("killers")
        default_permissions: ClassVar = ("view",)
        ordering: ClassVar = ("-quarantined_at",)

    def __str__(self) -> str:
        return f"{self.task} {self.id}"
