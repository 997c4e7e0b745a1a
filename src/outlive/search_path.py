"""The search_path of our sessions: names in our statements mean the server's own functions and operators. And no JIT:
to compile a statement takes longer than to run one of ours.

Where other logins may create, as all may in schema public of a database made before Postgres 15, a function of theirs
may fit a call of ours better than the server's own: count(text) is nearer than count("any"). It would run with our
rights. Functions of the schema are pinned by sql/schema/pins.sql.
"""

import re

TRUSTED = "pg_catalog, pg_temp"
PIN = f"set local search_path = {TRUSTED}; set local jit = off".encode()
"""Pins a transaction."""
_CALL = re.compile(
    rb"select (?:where |[\w, *]+ from )?outlive\.\w+\(\s*(?:\$\d+::[\w ]+(?:\[\])?,?\s*)*\)(?: is null)?"
)


def pin_session(backend_pid: int | None, check_ms: int | None = None) -> bytes:
    """Pins the session of this backend, and sets how often it looks whether its client has hung up. It returns the
    backend. No row: a pooler has sent this to another one, whose session is not ours to change. None: whichever it is,
    it is ours."""
    check = f", pg_catalog.set_config('client_connection_check_interval', '{check_ms}', false)" if check_ms else ""
    return (
        f"select pg_catalog.pg_backend_pid(), pg_catalog.set_config('search_path', '{TRUSTED}', false), "
        f"pg_catalog.set_config('jit', 'off', false){check} "
        f"where pg_catalog.pg_backend_pid() operator(pg_catalog.=) {backend_pid or 'pg_catalog.pg_backend_pid()'}"
    ).encode()


def is_call(text: bytes) -> bool:
    """Whether a statement does nothing but call a function of ours, with parameters of its own types. The function is
    pinned, so such a statement is safe with any search_path."""
    return _CALL.fullmatch(text) is not None
