"""Who a request comes from: the holder of a session, the holder of a token, or a user whom a trusted proxy names."""

from __future__ import annotations

import logging

from starlette.requests import HTTPConnection

from outlive.dashboard.access import ATTEMPTS, Access, Role
from outlive.dashboard.people import People, Person
from outlive.dashboard.proxy import USER

PERSON, TROUBLE = "outlive.person", "outlive.trouble"
"""The keys in the scope of a request: who it comes from, or why that is not known."""

_log = logging.getLogger("outlive.dashboard")


class WrongToken(Exception):
    """This token opens nothing. The text is for the person who gave it."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status


class Entrance:
    def __init__(self, access: Access, people: People) -> None:
        self._access, self._people = access, people

    async def person(self, connection: HTTPConnection) -> Person | None:
        """Who this is, by session or proxy. A session gives the role, and the proxy, if it knows a user, the name."""
        key, user = self._access.key_in(connection), connection.scope.get(USER)
        found = None if key is None else await self._holder(key)
        if user is None:
            return found
        if found is None:
            known = await self._people.named(user)
            return Person(Role.VIEWER if known is None else known.role, user)
        return Person(found.role, user, found.key)

    async def _holder(self, key: str) -> Person | None:
        return Person(Role(key), key=key) if key in list(Role) else await self._people.with_key(key)

    async def admit(self, connection: HTTPConnection, token: str) -> Person:
        """The person whose token this is. WrongToken: it is no token of this dashboard."""
        address = address_of(connection)
        locked_out = self._access.attempts.too_many(address)
        if (role := self._access.role_of(token)) is not None:
            return Person(role, key=role)
        # The tokens in the database are read again, but not for each guess.
        if (found := await self._people.with_token(token, fresh=not locked_out)) is not None:
            return found
        if locked_out:
            raise WrongToken("This token is wrong, and so were many before it: wait a minute.", 429)
        self._access.attempts.wrong(address)
        last = f": further ones within a minute of the first {ATTEMPTS} are not logged"
        more = last if self._access.attempts.too_many(address) else ""
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
