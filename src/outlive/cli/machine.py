"""What doctor finds about this machine: the limits that a worker started like this command would have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from outlive.cli import screen
from outlive.operations.findings import Finding, Level

FEW_FILES = 1024
FILES_PER_SLOT = 16
PROCESSES_PER_SLOT = 3
FEW_PROCESSES = 200
SMALL_SHARED_BYTES = 64 * 1024 * 1024
SMALL_MEMORY_BYTES = 256 * 1024 * 1024
NEAR = 0.9


def judge_machine(slots: int) -> Iterator[Finding]:
    yield _open_files(slots)
    yield _processes(slots)
    if (shared := _shared_memory()) is not None:
        yield shared
    yield from judge_cgroup(own_cgroup())


def _open_files(slots: int) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(FEW_FILES, FILES_PER_SLOT * slots)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        most = "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return Finding("fine", f"a process may open {most} files")
    return Finding(
        "advice",
        f"a process may open only {soft} files: a worker with {screen.counted(slots, 'slot')}, "
        "or a job with many connections, runs out",
        f"ulimit -n {needed if hard == resource.RLIM_INFINITY or hard >= needed else hard}; "
        "or LimitNOFILE= in the systemd unit",
    )


def _processes(slots: int) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:  # The kernel exempts root.
        return Finding("fine", "the number of processes is not limited for this user")
    used, needed = _processes_of(os.getuid()), max(FEW_PROCESSES, PROCESSES_PER_SLOT * slots)
    if soft - used >= needed:
        return Finding("fine", f"this user has {used} of {soft} processes")
    return Finding(
        "advice",
        f"this user has {used} of {soft} processes: jobs can't be forked when the limit is reached",
        f"ulimit -u {used + needed}; or LimitNPROC= in the systemd unit",
    )


def _processes_of(user: int) -> int:
    found = 0
    for entry in os.scandir("/proc"):
        try:
            found += entry.name.isdecimal() and entry.stat().st_uid == user
        except OSError:  # It has ended.
            continue
    return found


def _shared_memory(place: str = "/dev/shm") -> Finding | None:
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if size <= SMALL_SHARED_BYTES or free < SMALL_SHARED_BYTES:
        return Finding(
            "advice",
            f"{place} has {screen.size(free)} free of {screen.size(size)}: browsers and model code die with SIGBUS",
            "docker run --shm-size=1g; or mount -o remount,size=1g /dev/shm",
        )
    return Finding("fine", f"{place} has {screen.size(free)} free of {screen.size(size)}")


def own_cgroup(root: str = "/sys/fs/cgroup") -> Path | None:
    """The directory of this process' cgroup; None without cgroups of version 2."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = [line.partition("::")[2] for line in lines if line.startswith("0::")]
    found = Path(root + paths[0]) if paths else None
    return found if found and found.is_dir() else None


def judge_cgroup(place: Path | None) -> Iterator[Finding]:
    """The limits of the nearest cgroup above this process that has any."""
    if place is None:
        return
    memory, pids = _nearest(place, "memory"), _nearest(place, "pids")
    if memory is None:
        yield Finding("fine", "no cgroup limits the memory here")
    else:
        used, most = memory
        level: Level = "advice" if most < SMALL_MEMORY_BYTES or used > NEAR * most else "fine"
        what = f"the cgroup of this process uses {screen.size(used)} of {screen.size(most)} memory"
        yield Finding(level, what, None if level == "fine" else "raise its limit, or run fewer slots: --slots")
    if pids is not None:
        used, most = pids
        level = "advice" if most - used < FEW_PROCESSES else "fine"
        what = f"the cgroup of this process has {used} of {most} processes"
        yield Finding(
            level, what, None if level == "fine" else "raise its limit: --pids-limit, or TasksMax= in systemd"
        )


def _nearest(place: Path, controller: str) -> tuple[int, int] | None:
    """How much is used of the tightest limit from here to the root, and that limit."""
    found: list[tuple[int, int]] = []
    for folder in (place, *place.parents):
        try:
            limit = (folder / f"{controller}.max").read_text().strip()
            if limit != "max":
                found.append((int((folder / f"{controller}.current").read_text()), int(limit)))
        except (OSError, ValueError):
            continue
    return min(found, key=lambda one: one[1] - one[0], default=None)
