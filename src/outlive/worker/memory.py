"""How much memory processes have, as /proc tells it: anonymous, shared, and in files that live in memory.

What is in none of these is not seen here: pages of a memfd whose descriptor is closed, files that were left in
/dev/shm, page cache, memory of the kernel's. A cgroup counts them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Collection
from itertools import islice

from outlive import kernel

MAX_DESCRIPTORS = 4096
"""How many open files of a job are looked at: asking for each takes the kernel a microsecond or two."""
CLOCK_TICK_S = 0.01
"""Files are stamped by a clock that moves in ticks of this length."""

_RESIDENT = re.compile(rb"^RssAnon:\s+(\d+) kB$.*^RssShmem:\s+(\d+) kB$", re.DOTALL | re.MULTILINE)
_PROPORTIONAL = re.compile(rb"^Pss_Anon:\s+(\d+) kB$.*^Pss_Shmem:\s+(\d+) kB$", re.DOTALL | re.MULTILINE)

Inode = tuple[int, int]
"""Device and number: what tells a file from all others."""


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *kernel.descendants_of(pid)]


def resident_bytes(pids: Collection[int]) -> tuple[int, int]:
    """The resident memory that is anonymous, and that is shared. Pages that several have are counted several times."""
    anonymous, shared = zip(*(_fields(f"/proc/{pid}/status", _RESIDENT) for pid in pids), strict=True)
    return sum(anonymous), sum(shared)


def proportional_bytes(pids: Collection[int]) -> int:
    """Both together, with pages that several have counted once: slow to ask for, so asked only before a kill."""
    return sum(sum(_fields(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)) for pid in pids)


def files_in_memory(pids: Collection[int], since: float) -> dict[Inode, int]:
    """The memfds and files in /dev/shm that processes have open for writing and that changed since: bytes of each.

    What was there before, or is only read, belongs to others.
    """
    found: dict[Inode, int] = {}
    for path in islice((path for pid in pids for path in _descriptors(pid)), MAX_DESCRIPTORS):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(("/memfd:", "/dev/shm/")) and os.lstat(path).st_mode & 0o200:
                file = os.stat(path)
                if file.st_ctime >= since - CLOCK_TICK_S:
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return found


def unmapped_bytes(pids: Collection[int], files: dict[Inode, int]) -> int:
    """What of these files is in the resident memory of none of these processes."""
    if not files:
        return 0
    mapped: Counter[Inode] = Counter()
    for pid in pids:
        inode = None
        for line in kernel.read(f"/proc/{pid}/smaps").splitlines():
            words = line.split(None, 5)
            if not words[0].endswith(b":"):  # 7f00-7fff rw-s 00000000 00:01 1234 /memfd:name (deleted)
                major, minor = (int(part, 16) for part in words[3].split(b":"))
                inode = os.makedev(major, minor), int(words[4])
            elif inode in files and words[0] == b"Pss:":
                mapped[inode] += int(words[1]) * 1024
    return sum(max(0, size - mapped[inode]) for inode, size in files.items())


def _descriptors(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def _fields(path: str, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    """Two fields of a file that has lines like `Name:  12 kB`, in bytes; zeros if it is gone."""
    found = pattern.search(kernel.read(path))
    return (int(found[1]) * 1024, int(found[2]) * 1024) if found else (0, 0)
