"""The tasks of an app that has two databases. Each has workers of its own: `outlive worker shards.tasks:first`."""

from __future__ import annotations

import os

import outlive
from shards.router import Shards

shards = Shards(*os.environ["SHARDS"].split())
first, second = shards.apps


@shards.task
def charge(tenant: str, cents: int) -> str:
    return f"{tenant} paid {cents}"


@shards.task
def give(tenant: str, friend: str) -> str:
    """A job may enqueue on any shard."""
    return str(charge(friend).enqueue(friend, 100).id)


@shards.task
def share(tenant: str, friend: str) -> None:
    """What a job spawns comes with its end, so it must be on the same shard."""
    outlive.current().spawn(charge(friend).job(friend, 50))
