"""`outlive gameday`: kills workers, children and sessions while jobs run, and says whether every job survived.

`jobs` is the app, `feeding` enqueues, `workers` keeps workers up, `faults` takes them down, `game` does all of it at
once. `history` is what was seen, `tables` reads what the database holds, and `checker` and `times` hold the two against
each other without touching either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive.config import Config
    from outlive.lab.gameday.options import Asked


def main(config: Config, asked: Asked) -> int:
    """The command; imported only then, so that a zygote that has gameday's jobs has nothing else of it."""
    from outlive.lab.gameday.command import main

    return main(config, asked)
