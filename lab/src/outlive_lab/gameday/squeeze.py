"""A stranger that uses up the memory of a zygote's control group, until the kernel kills the zygote.

It is no job and no process of the worker, like a sidecar in the same container. The kernel must let the worker make
groups (`worker/limits/cgroups.py`); elsewhere this fault does not happen.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from outlive import linux
from outlive.worker.limits import cgroups
from outlive.worker.limits.cgroups import Group

ROOM_BYTES = 4 << 20
MOST_MB = 512
# It stops as soon as the zygote is dead: a zombie has no memory any more.
_EATER = """
import sys
pid, most = map(int, sys.argv[1:])
sys.stdin.readline()
kept = []
for _ in range(most):
    try:
        if open(f"/proc/{pid}/statm").read(2) == "0 ":
            break
    except OSError:
        break
    kept.append(b"x" * (1 << 20))
sys.stdin.readline()
"""


def possible() -> bool:
    """Whether the kernel lets workers make groups."""
    return cgroups.find() is not None


def group_of(zygote: int) -> Group | None:
    place = cgroups.find()
    for path in place.path.glob(f"{cgroups.PREFIX}*/zygote") if place else ():
        if str(zygote).encode() in linux.read(str(path / "cgroup.procs")).split():
            return Group(place.version, path)  # type: ignore[union-attr]
    return None


def squeeze(zygote: int, group: Group) -> Generator[bool, None, None]:
    """Eat until the kernel has killed a process of the group. Yields False until then, and once True."""
    with contextlib.suppress(OSError):  # The kernel chooses the zygote, whatever the worker has told it.
        Path(f"/proc/{zygote}/oom_score_adj").write_text("1000")
    before = group.kills()
    words = [sys.executable, "-S", "-c", _EATER, str(zygote), str(MOST_MB)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as eater:
        try:
            group.add(eater.pid)
            group.limit(group.used_bytes() + ROOM_BYTES)
            assert eater.stdin is not None
            eater.stdin.write(b"\n")
            eater.stdin.flush()
            while group.kills() == before and eater.poll() is None:
                yield False
            killed = group.kills() > before
        finally:
            group.limit(None)
            eater.kill()
    if killed:
        yield True
