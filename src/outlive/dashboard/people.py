"""Who a request comes from: the holder of a session or a token, or a user whom a trusted proxy names; and the people
who have a token of their own (`outlive dashboard token add`).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from starlette.requests import HTTPConnection

from outlive import store
from outlive.dashboard.access import ATTEMPTS, Access, Role
from outlive.dashboard.proxy import USER
from outlive.errors import OutliveError
from outlive.statement import Statement
from outlive.store.statements import Table

PERSON, TROUBLE = "outlive.person", "outlive.trouble"
"""The keys in the scope of a request: who it comes from, or why that is not known."""
AGAIN_S = 2.0
"""How soon a removed token ends its sessions, and how soon a read that failed is tried again."""
HOLD_S = 60.0
"""How long known tokens hold while they can't be read."""
Signed = tuple[str, Literal["viewer", "operator"]] | None
Who = Callable[[HTTPConnection], Signed | Awaitable[Signed]]
"""Who is signed in at the app that mounts the dashboard, by name and role; None: this app does not say."""
_PLAIN_NAME = re.compile(r"[\w.@+\\/-]+")

_log = logging.getLogger("outlive.dashboard")


class WrongToken(Exception):
    """This token opens nothing. The text is for the person who gave it."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status


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
    """Who may come in. The tokens in the database are read again after some seconds, and for each login."""

    def __init__(
        self, access: Access, run: Callable[[Statement[Table]], Awaitable[Table]], who: Who | None = None
    ) -> None:
        self._access, self._run, self._who = access, run, who
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        self._failed_at = -math.inf
        self._failure: OutliveError | None = None
        self._known: dict[tuple[str, bytes | str], Person] = {}

    async def find(
        self, by: Literal["hash", "key", "name"], value: bytes | str, *, fresh: bool = False
    ) -> Person | None:
        await self._read(time.monotonic() - (0.0 if fresh else AGAIN_S))
        return self._known.get((by, value))

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
        self._known = {}
        for row in rows:
            person = Person(Role(row["role"]), row["name"], row["id"].hex)
            for key in (("hash", bytes(row["hash"])), ("key", person.key), ("name", row["name"])):
                self._known[key] = person
        self._read_at, self._failure = began, None

    async def person(self, connection: HTTPConnection) -> Person | None:
        """Who this is, by the app around, or by session or proxy. A session gives the role, and the proxy, if it knows
        a user, the name."""
        if (signed := await self._signed_in(connection)) is not None:
            return signed
        key, user = self._access.key_in(connection), connection.scope.get(USER)
        found = None if key is None else await self._holder(key)
        if user is None:
            return found
        if found is None:
            known = await self.find("name", user)
            return Person(Role.VIEWER if known is None else known.role, user)
        return Person(found.role, user, found.key)

    async def _signed_in(self, connection: HTTPConnection) -> Person | None:
        if self._who is None:
            return None
        found = self._who(connection)
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return None
        name, role = found
        connection.scope[USER] = name  # The proof in the forms is theirs.
        return Person(Role(role), name)

    async def _holder(self, key: str) -> Person | None:
        return Person(Role(key), key=key) if key in list(Role) else await self.find("key", key)

    async def admit(self, connection: HTTPConnection, token: str) -> Person:
        """The person whose token this is. WrongToken: it is no token of this dashboard."""
        address = address_of(connection)
        locked_out = self._access.too_many(address)
        if (role := self._access.role_of(token)) is not None:
            return Person(role, key=role)
        # The tokens in the database are read again, but not for each guess.
        if (found := await self.find("hash", hash_of(token), fresh=not locked_out)) is not None:
            return found
        if locked_out:
            raise WrongToken("This token is wrong, and so were many before it: wait a minute.", 429)
        self._access.count_wrong(address)
        last = f": further ones within a minute of the first {ATTEMPTS} are not logged"
        more = last if self._access.too_many(address) else ""
        _log.warning("a wrong token was given by %s%s", address, more)
        raise WrongToken("This token is wrong.", 401)


def person_of(connection: HTTPConnection) -> Person | None:
    """Who the request comes from. Raises if the database, which has to say so, does not answer."""
    if error := connection.scope.get(TROUBLE):
        raise error
    found: Person | None = connection.scope.get(PERSON)
    return found


def address_of(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def hash_of(token: str) -> bytes:
    """What is stored of a token. A token is as random as a key, so that no slow hash is needed."""
    return hashlib.sha256(token.encode(errors="replace")).digest()
