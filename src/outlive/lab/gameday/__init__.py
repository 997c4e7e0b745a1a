"""`outlive gameday`: kills workers, children and sessions while jobs run, and checks that every job survives.

`jobs` is the app, `feeding` enqueues, `workers` keeps workers running, `faults` takes them down, `game` does all of it
at once. `history` is what the game saw and `tables` reads what the database holds. `checker` and `times` compare the
two; they are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive.config import Config
    from outlive.lab.gameday.options import Options


def main(config: Config, options: Options) -> int:
    """Run the command. The import is here to keep the game out of zygotes that import its jobs."""
    from outlive.lab.gameday.command import main

    return main(config, options)
