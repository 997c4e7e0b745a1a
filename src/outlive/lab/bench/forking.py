"""How often a process like the zygote can fork at all: `python -m outlive.lab.bench.forking MODULE:APP SECONDS`.

A single-threaded process on one core imports what a zygote imports, freezes its garbage, forks a child that exits at
once, waits for it, and does that again. No worker that gives each job a process of its own can be faster on a core.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True, slots=True)
class Forked:
    """`libraries` are the large ones that the app has loaded."""

    per_s: float
    libraries: list[str]


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """Fork for so long."""

    target: str
    seconds: float

    def prepare(self) -> Callable[[], Forked]:
        # As the zygote is started.
        environ = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **os.environ}
        words = [sys.executable, "-m", "outlive.lab.bench.forking", self.target, str(self.seconds)]

        def timed() -> Forked:
            answer = json.loads(subprocess.run(words, env=environ, check=True, capture_output=True).stdout)
            return Forked(answer["per_s"], answer["libraries"])

        return timed


def main(target: str, seconds: float) -> None:
    from outlive.child import apps, zygote

    assert zygote  # What it imports is a part of its size.
    apps.import_app(target)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.collect()
    gc.freeze()
    forks, began_s = 0, monotonic()
    while monotonic() - began_s < seconds:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        forks += 1
    per_s = forks / (monotonic() - began_s)
    libraries = getattr(sys.modules[target.partition(":")[0]], "LOADED", [])
    print(json.dumps({"per_s": per_s, "libraries": libraries}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
