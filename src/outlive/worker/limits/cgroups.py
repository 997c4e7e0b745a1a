"""Control groups of a worker, where the kernel lets it make some. Elsewhere the watch measures memory alone.

They limit memory exactly, count the processes that the kernel killed for lack of memory, and hold every process of a
job, whatever that process does to its environment and its parents.

    <the worker's group>/outlive-<worker>-<its sign of life>/zygote      zygotes, and the processes that they forked
                                                            /<pid>       one child whose job has a limit
                                                            /supervisor  version 2 only: see `Groups._make_room`
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from outlive import linux
from outlive.worker import log

PREFIX = "outlive-"
SUPERVISOR = "supervisor"
EMPTY_S, SWEPT_S = 1.0, 0.1
"""How long a worker that stops waits for killed processes to be gone, and one that starts for those of a dead one."""
GATHER_ROUNDS = 5
"""How often `gather` checks whether a job has forked while its processes were moved."""


@dataclass(frozen=True, slots=True)
class Group:
    version: int
    path: Path

    def __str__(self) -> str:
        return f"cgroup v{self.version}"

    def add(self, pid: int) -> None:
        self.write("cgroup.procs", pid)

    def gather(self, pid: int) -> None:
        """Move a process and its descendants here. Each move takes some 8 ms: too long for an event loop."""
        for _ in range(GATHER_ROUNDS):
            here = set(self.pids())
            elsewhere = [one for one in (pid, *linux.descendants_of(pid)) if one not in here]
            if not elsewhere:
                return
            for one in elsewhere:
                self.add(one)

    def pids(self) -> list[int]:
        return [int(word) for word in self.words("cgroup.procs")]

    def limit(self, most_bytes: int | None) -> None:
        file, unlimited = ("memory.max", "max") if self.version == 2 else ("memory.limit_in_bytes", "-1")
        self.write(file, unlimited if most_bytes is None else most_bytes)

    def used_bytes(self) -> int:
        """All memory that is charged to it, page cache included."""
        return self._number("memory.current" if self.version == 2 else "memory.usage_in_bytes")

    def peak_bytes(self) -> int:
        """The most memory that was charged to it."""
        return self._number("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")

    def forget_peak(self) -> None:
        """Reset the peak. In version 2 that works only for the descriptor that asks, so nothing happens there."""
        self.write("memory.max_usage_in_bytes", 0)
        self.write("memory.failcnt", 0)

    def kills(self) -> int:
        """How many of its processes the kernel has killed for lack of memory."""
        return self.count("memory.events" if self.version == 2 else "memory.oom_control", b"oom_kill")

    def was_full(self, used_bytes: int, limit_bytes: int) -> bool:
        """Whether the kernel has found no room below its own limit. A kill may also be for lack of memory outside.

        Version 1 counts it too when the kernel made room by dropping page cache. There the processes must also have
        used half of the limit, together with files in tmpfs: these are still charged when the processes are dead.
        """
        if self.version == 2:
            return self.count("memory.events", b"oom") > 0
        used_bytes += self.count("memory.stat", b"total_shmem")
        return used_bytes > limit_bytes // 2 and self._number("memory.failcnt") > 0

    def kill(self) -> None:
        """Kill its processes. In version 1 they may fork faster than they die: the caller repeats this."""
        if self.version == 2 and self.write("cgroup.kill", 1):
            return
        for pid in self.pids():
            linux.kill(pid)

    def remove(self) -> bool:
        """True if it is gone. Otherwise its processes are killed, and the next call may remove it."""
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            self.kill()
            return False
        return True

    def words(self, file: str) -> list[bytes]:
        return linux.read(str(self.path / file)).split()

    def count(self, file: str, name: bytes) -> int:
        words = self.words(file)
        return int(words[words.index(name) + 1]) if name in words else 0

    def _number(self, file: str) -> int:
        return int(next(iter(self.words(file)), 0))

    def write(self, file: str, value: int | str) -> bool:
        """False if the kernel refuses the value."""
        try:
            (self.path / file).write_text(str(value))
        except OSError:
            return False
        return True

    @property
    def gives_memory(self) -> bool:
        """Whether groups below it can limit memory."""
        return self.version == 1 or b"memory" in self.words("cgroup.subtree_control")


class Groups:
    """The groups of one worker. A group that can't be removed at once is removed with the next one."""

    def __init__(self, place: Group, worker: UUID) -> None:
        self.place = place
        sign = linux.sign_of_life(os.getpid()).replace(":", "-")
        self.path = place.path / f"{PREFIX}{worker}-{sign}"
        self.zygote = Group(place.version, self.path / "zygote")
        self._leaving: set[Group] = set()

    def __str__(self) -> str:
        return str(self.place)

    @classmethod
    def make(cls, worker: UUID) -> Groups | None:
        """None where the kernel allows no groups."""
        place = find()
        if place is None:
            return None
        groups = cls(place, worker)
        try:
            groups.path.mkdir()
            if place.version == 2:
                groups._make_room()
            groups.zygote.path.mkdir()
            return groups
        except OSError as error:
            log.info("memory is limited by polling, because no cgroup can be made in %s: %s", place.path, error)
            groups.end()
        return None

    def _make_room(self) -> None:
        """In version 2 a group with limited children may not hold processes itself: move this process into a leaf."""
        if not self.place.gives_memory:
            leaf = self.path / SUPERVISOR
            leaf.mkdir()
            (leaf / "cgroup.procs").write_text("0")
            # EBUSY: other processes live here, which must not be moved.
            (self.place.path / "cgroup.subtree_control").write_text("+memory")
        (self.path / "cgroup.subtree_control").write_text("+memory")

    def new(self, pid: int) -> Group | None:
        """An empty group for one child, or None if the kernel allows no more. `gather` moves the child there."""
        group = Group(self.place.version, self.path / str(pid))
        try:
            group.path.mkdir()
        except OSError:
            return None
        if group.version == 2:
            group.write("memory.oom.group", 1)
            group.write("memory.swap.max", 0)
        return group

    def remove(self, group: Group) -> None:
        self._leaving.add(group)
        self._leaving = {one for one in self._leaving if not one.remove()}

    def end(self) -> None:
        """Kill and remove all groups of jobs. Other processes that the supervisor has started stay."""
        _remove_below(self.path, self.place.version, within_s=EMPTY_S)
        if (self.path / SUPERVISOR).exists():  # Move this process back, unless another worker needs the arrangement.
            if all(other == self.path for other in self.place.path.glob(f"{PREFIX}*")):
                Group(2, self.path).write("cgroup.subtree_control", "-memory")
                self.place.write("cgroup.subtree_control", "-memory")
            self.place.add(0)
        _remove_empty(self.path)


def find() -> Group | None:
    """The group of this process, if it may make groups there that limit memory, according to the kernel."""
    return next((place for place, _ in _places() if _is_usable(place)), None)


def memory_bytes() -> int:
    """How much memory the processes around this one may have: that of the machine, or of its container."""
    _, _, found = linux.read("/proc/meminfo").partition(b"MemTotal:")
    sizes = [int(found.split(None, 1)[0]) * 1024] if found else []
    for place, top in _places():
        if place.version == 1:
            sizes.append(place.count("memory.stat", b"hierarchical_memory_limit") or sys.maxsize)
        else:
            above = (one for one in (place.path, *place.path.parents) if one.is_relative_to(top))
            limits = (word for one in above for word in Group(2, one).words("memory.max"))
            sizes += [int(limit) for limit in limits if limit.isdigit()]
    return min(sizes, default=0)


def _places() -> Iterator[tuple[Group, Path]]:
    """The groups of this process that count memory, and where the tree of each is mounted."""
    own: dict[int, str] = {}
    for line in linux.read("/proc/self/cgroup").decode(errors="replace").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            own[2 if number == "0" else 1] = path
    for line in linux.read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if not after.startswith("cgroup"):
            continue
        root, mounted = before.split()[3:5]
        words = after.split()
        version = 2 if words[0] == "cgroup2" else 1 if "memory" in words[-1].split(",") else 0
        mine = Path(own.get(version, "/.."))
        if mine.is_relative_to(root) and ".." not in mine.parts:
            yield Group(version, Path(mounted) / mine.relative_to(root)), Path(mounted)


def _is_usable(place: Group) -> bool:
    if not os.access(place.path, os.W_OK):
        return False
    if place.version == 1:
        return os.access(place.path / "cgroup.procs", os.W_OK)
    return b"memory" in place.words("cgroup.controllers") and (place.gives_memory or _is_delegated(place.path))


def _is_delegated(path: Path) -> bool:
    """Whether the tree below was delegated: by systemd's mark, as the root of a container, or to this account."""
    for mark in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):  # Mostly: it has no such mark.
            if os.getxattr(path, mark) == b"1":
                return True
    own_root = b"0::/\n" in linux.read("/proc/self/cgroup") and (path / "cgroup.type").exists()
    return own_root or (os.geteuid() != 0 and path.stat().st_uid == os.geteuid())


def _remove_below(top: Path, version: int, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    with contextlib.suppress(FileNotFoundError):
        left = [Group(version, path) for path in top.iterdir() if path.is_dir() and path.name != SUPERVISOR]
        while (left := [one for one in left if not one.remove()]) and time.monotonic() < deadline:
            time.sleep(0.005)


def _remove_empty(top: Path) -> None:
    for path in (top / SUPERVISOR, top):
        with contextlib.suppress(OSError):
            path.rmdir()


def remove_orphans() -> None:
    """Kill and remove the groups that dead workers left beside this process."""
    place = find()
    for top in place.path.glob(f"{PREFIX}*") if place else ():
        sign = top.name.rsplit("-", 3)[1:]
        if place and len(sign) == 3 and all(map(str.isdecimal, sign)) and linux.is_dead(":".join(sign)):
            _remove_below(top, place.version, within_s=SWEPT_S)
            _remove_empty(top)
