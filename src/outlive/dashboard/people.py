"""The people who have a token of their own (`outlive dashboard token add`), and who one request comes from."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outlive import store
from outlive.dashboard.access import Role
from outlive.errors import OutliveError
from outlive.statement import Statement
from outlive.store.statements import Table

AGAIN_S = 2.0
"""How soon a removed token ends its sessions, and how soon a read that failed is tried again."""
HOLD_S = 60.0
"""How long known tokens hold while they can't be read."""
_PLAIN_NAME = re.compile(r"[\w.@+\\/-]+")


@dataclass(frozen=True, slots=True)
class Person:
    """`key` stands for the person in a session: the role that a token of the settings gives, or the id of a token."""

    role: Role
    name: str | None = None
    key: str = ""

    @property
    def shown(self) -> str:
        """The name as the audit has it. In quotes, a name can't pass for another sentence."""
        if self.name is None:
            return self.role
        plain = _PLAIN_NAME.fullmatch(self.name) and self.name not in list(Role)
        return self.name if plain else json.dumps(self.name, ensure_ascii=False)


class People:
    """The tokens in the database. They are read again after some seconds, and for each login."""

    def __init__(self, run: Callable[[Statement[Table]], Awaitable[Table]]) -> None:
        self._run = run
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        self._failed_at = -math.inf
        self._failure: OutliveError | None = None
        self._by_hash: dict[bytes, Person] = {}
        self._by_key: dict[str, Person] = {}
        self._by_name: dict[str, Person] = {}

    async def with_token(self, token: str, *, fresh: bool) -> Person | None:
        await self._read(time.monotonic() if fresh else time.monotonic() - AGAIN_S)
        return self._by_hash.get(hash_of(token))

    async def with_key(self, key: str) -> Person | None:
        await self._read(time.monotonic() - AGAIN_S)
        return self._by_key.get(key)

    async def named(self, name: str) -> Person | None:
        await self._read(time.monotonic() - AGAIN_S)
        return self._by_name.get(name)

    async def _read(self, not_before: float) -> None:
        """Read the tokens, unless another request has done so since. While that fails, known ones hold for a minute."""
        async with self._reading:
            if self._read_at >= not_before:
                return
            if self._failure is None or time.monotonic() - self._failed_at >= AGAIN_S:
                await self._try()
            if self._failure is not None and time.monotonic() - self._read_at > HOLD_S:
                raise self._failure.with_traceback(None)

    async def _try(self) -> None:
        began = time.monotonic()
        try:
            rows = await self._run(store.dashboard_people())
        except OutliveError as error:
            self._failure, self._failed_at = error, time.monotonic()
            return
        people = [(Person(Role(row["role"]), row["name"], row["id"].hex), bytes(row["hash"])) for row in rows]
        self._by_hash = {hash: one for one, hash in people}
        self._by_key = {one.key: one for one, _ in people}
        self._by_name = {str(one.name): one for one, _ in people}
        self._read_at, self._failure = began, None


def hash_of(token: str) -> bytes:
    """What is stored of a token. A token is as random as a key, so that no slow hash is needed."""
    return hashlib.sha256(token.encode(errors="replace")).digest()
