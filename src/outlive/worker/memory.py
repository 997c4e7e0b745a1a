"""How much memory processes have, read from /proc: anonymous, shared, and in files that live in memory.

Some memory is not visible there: pages of a memfd whose descriptor is closed, files left in /dev/shm, page cache,
kernel memory. A cgroup counts these too.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

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


def proportional_bytes(pids: Collection[int], *, shared: bool = True) -> int:
    """Both together, with each page of these processes counted once. The kernel is slow to answer."""
    each = [_fields(f"/proc/{pid}/smaps_rollup", _PROPORTIONAL) for pid in pids]
    return sum(anonymous + (in_files if shared else 0) for anonymous, in_files in each)


def proportional_bytes_below(pid: int) -> int:
    """The same for a process and all of its descendants."""
    return proportional_bytes([pid, *kernel.descendants_of(pid)])


def descriptors(pid: int) -> list[str]:
    """The paths of the open files of a process."""
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


class File(NamedTuple):
    """A memfd or a file in /dev/shm that a process may write to."""

    inode: Inode
    size_bytes: int
    born_at: float


class Mapping(NamedTuple):
    """A memfd or a file in /dev/shm that a process has mapped, in one part or in many."""

    path: str
    """Where the kernel shows its first part, to root only."""
    name: str
    inode: Inode
    writable: bool
    proportional_bytes: int

    def is_older(self, than: float) -> bool:
        """Whether it is known to have been made before this moment."""
        born_at = kernel.born_at(self.path)
        if born_at is None and _inode(self.name) == self.inode:
            born_at = kernel.born_at(self.name)
        return born_at is not None and born_at < than - CLOCK_TICK_S


def file_in_memory(path: str) -> File | None:
    """The file behind a descriptor, if it lives in memory and is open for writing."""
    try:
        if os.readlink(path).startswith(("/memfd:", "/dev/shm/")) and os.lstat(path).st_mode & 0o200:
            file = os.stat(path)
            born_at = kernel.born_at(path)
            return File((file.st_dev, file.st_ino), file.st_blocks * 512, math.inf if born_at is None else born_at)
    except OSError:
        pass
    return None


def mappings(pid: int) -> list[Mapping]:
    """What a process has mapped of files that live in memory. The kernel is slow to answer.

    A process may have 65,000 mappings, with 24 lines about each: a regular expression would take seconds.
    """
    smaps = kernel.read(f"/proc/{pid}/smaps")
    found: dict[bytes, Mapping] = {}
    kilobytes: Counter[bytes] = Counter()
    writable: set[bytes] = set()
    for kind in (b"/memfd:", b"/dev/shm/"):
        at = 0
        while (at := smaps.find(b" " + kind, at)) >= 0 and (size_at := smaps.find(b"\nPss:", at)) >= 0:
            line = smaps[smaps.rfind(b"\n", 0, at) + 1 : smaps.find(b"\n", at)]
            place, rights, _, device, number, name = line.split(None, 5)
            at = size_at
            if name.startswith(kind):
                file = device + b":" + number
                kilobytes[file] += int(smaps[size_at + 5 : smaps.find(b"kB", size_at)])
                if rights[1:2] == b"w" and rights[3:4] == b"s":
                    writable.add(file)
                if file not in found:
                    path = f"/proc/{pid}/map_files/{place.decode()}"
                    found[file] = Mapping(path, os.fsdecode(name), _inode_of(file), False, 0)
    return [
        one._replace(writable=file in writable, proportional_bytes=kilobytes[file] * 1024)
        for file, one in found.items()
    ]


def _inode_of(words: bytes) -> Inode:
    """As /proc shows it: `major:minor:number`."""
    major, minor, number = words.split(b":")
    return os.makedev(int(major, 16), int(minor, 16)), int(number)


def _inode(path: str) -> Inode | None:
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino


def _fields(path: str, pattern: re.Pattern[bytes]) -> tuple[int, int]:
    """Two fields of a file with lines like `Name:  12 kB`, in bytes; zeros if the file is gone."""
    found = pattern.search(kernel.read(path))
    return (int(found[1]) * 1024, int(found[2]) * 1024) if found else (0, 0)
