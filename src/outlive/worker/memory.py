"""How much memory processes have, read from /proc: anonymous, shared, and in files that live in memory.

Some memory is not visible there: pages of a memfd whose descriptor is closed, files left in /dev/shm, page cache,
kernel memory. A cgroup counts these too.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection

from outlive import kernel

CLOCK_TICK_S = 0.01
"""The kernel stamps files with a clock of this resolution."""

_RESIDENT = re.compile(rb"^RssAnon:\s+(\d+) kB$.*^RssShmem:\s+(\d+) kB$", re.DOTALL | re.MULTILINE)
_PROPORTIONAL = re.compile(rb"^Pss_Anon:\s+(\d+) kB$.*^Pss_Shmem:\s+(\d+) kB$", re.DOTALL | re.MULTILINE)

Inode = tuple[int, int]
"""Device and inode number: they identify a file."""


def resident_bytes(pid: int) -> tuple[int, int]:
    """Anonymous and shared resident memory of a process; zeros if it is gone."""
    return _fields(f"/proc/{pid}/status", _RESIDENT)


def proportional_bytes(pids: Collection[int]) -> int:
    """Both together, with each page of these processes counted once. The kernel is slow to answer."""
    return sum(sum(_fields(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL)) for pid in pids)


def proportional_bytes_below(pid: int) -> int:
    """The same for a process and all of its descendants."""
    return proportional_bytes([pid, *kernel.descendants_of(pid)])


def descriptors(pid: int) -> list[str]:
    """The paths of the open files of a process."""
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def file_in_memory(path: str, since: float) -> dict[Inode, int]:
    """The size of a memfd or file in /dev/shm, if this descriptor is open for writing and it has changed `since`.

    A file that is older, or open only for reading, belongs to another process.
    """
    try:
        if os.readlink(path).startswith(("/memfd:", "/dev/shm/")) and os.lstat(path).st_mode & 0o200:
            file = os.stat(path)
            if file.st_ctime >= since - CLOCK_TICK_S:
                return {(file.st_dev, file.st_ino): file.st_blocks * 512}
    except OSError:
        pass
    return {}


def unmapped_bytes(pids: Collection[int], files: dict[Inode, int]) -> int:
    """How much of these files is not mapped by any of these processes."""
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


def _fields(path: str, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    """Two fields of a file with lines like `Name:  12 kB`, in bytes; zeros if the file is gone."""
    found = pattern.search(kernel.read(path))
    return (int(found[1]) * 1024, int(found[2]) * 1024) if found else (0, 0)
