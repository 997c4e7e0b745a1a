"""The router: the same tasks on several databases, and all jobs of a tenant on one of them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import ParamSpec, TypeVar

import outlive

P = ParamSpec("P")
R = TypeVar("R")


class Shards:
    def __init__(self, *urls: str) -> None:
        self.apps = [outlive.App(url) for url in urls]

    def task(self, function: Callable[P, R]) -> Callable[[str], outlive.Task[P, R, R]]:
        """Declare a task on each shard. Called with a tenant, it is the task of that tenant's shard."""
        tasks = [app.task(function) for app in self.apps]
        return lambda tenant: tasks[self.number(tenant)]

    def number(self, tenant: str) -> int:
        """The shard with the highest hash. Another shard gets tenants of all others, and moves no one else."""
        return max(range(len(self.apps)), key=lambda n: blake2b(f"{n} {tenant}".encode()).digest())
