"""The statements that a job may run through its worker: a job has no connection to the queue."""

from __future__ import annotations

from collections.abc import Sequence

from outlive.errors import BadArguments, StaleAttempt
from outlive.statement import BIGINTS, Row, Statement, column
from outlive.store.building import Names, text_of

_ALLOWED = frozenset(
    {
        *("enqueue", "enqueue_one", "enqueue_plain", "statuses", "outcomes", "cancel"),
        *("ask_source", "count_outcomes", "list_records"),
    }
)
_WITH_TOKEN = ("ask_source", "count_outcomes")
"""The second parameter of these is the token of the attempt that calls a source."""


def asked_by_job(name: str, parameters: Sequence[object], token: int | None) -> Statement[tuple[Names, list[Row]]]:
    """The statement that the job of this attempt names. Its rows go back undecoded."""
    if name not in _ALLOWED:
        raise BadArguments(f"a job can't ask for the statement {name}")
    if name in _WITH_TOKEN and parameters[1] not in (None, token, column(BIGINTS, [token])):
        raise StaleAttempt(f"a job asked for {name} with the token of an attempt that its process does not run")
    return Statement(name, text_of(name), tuple(parameters), lambda names, rows: (names, rows))
