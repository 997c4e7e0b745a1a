"""How often a process like the zygote can fork: `python -m outlive_lab.bench.forking MODULE:APP SECONDS`.

A single-threaded process on one core imports what a zygote imports, freezes its garbage, and then forks a child that
exits at once and waits for it, again and again. No worker that gives each job its own process is faster on one core.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive_lab.bench.processes import Probing


def forks(target: str, seconds: float, more: Mapping[str, str] = {}) -> Probing[tuple[float, list[str]]]:
    """The rate, and the large libraries that the app has loaded. `more` goes into the environment."""
    import json  # Not at the top: these import threading, which the zygote does not have, and every fork pays for it.
    import subprocess

    environ = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **os.environ, **more}  # The zygote starts with it too.
    words = [sys.executable, "-m", "outlive_lab.bench.forking", target, str(seconds)]
    yield
    per_s, libraries = json.loads(subprocess.run(words, env=environ, check=True, capture_output=True).stdout)
    return per_s, libraries


def main(target: str, seconds: float) -> None:
    from outlive.child import zygote
    from outlive.importing import import_app

    assert zygote  # Its imports are a part of its size.
    import_app(target)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.collect()
    gc.freeze()
    times, began_s = 0, monotonic()
    while monotonic() - began_s < seconds:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        times += 1
    per_s = times / (monotonic() - began_s)
    libraries = getattr(sys.modules[target.partition(":")[0]], "LOADED", [])
    import json

    print(json.dumps([per_s, libraries]))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
