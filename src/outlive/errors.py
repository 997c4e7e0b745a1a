"""What can go wrong, one small class per cause: each says whose fault it is and what to do next.

How an attempt ended is data, never an exception; only the names that a job itself raises
(`Retry`, `Fail`, `Cancel`) and the ones that reach a caller live here.
"""


class OutliveError(Exception):
    """Anything that outlive itself raises."""


class ConfigError(OutliveError):
    """A setting is unknown, malformed or contradicts another."""


class DatabaseUnreachable(OutliveError):
    """The database can't be reached or answers no more."""


class SchemaMismatch(OutliveError):
    """The database's schema is not the one that this version works with."""


class EmbeddedError(OutliveError):
    """The embedded Postgres can't be found, started or used."""
