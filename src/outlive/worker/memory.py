"""How much memory a job's processes have."""

from __future__ import annotations

from outlive import kernel


def anonymous_bytes(pid: int) -> int:
    """The anonymous resident memory of a process and all below it."""
    return sum(_field(f"/proc/{one}/status", b"RssAnon:") for one in (pid, *kernel.descendants_of(pid)))


def proportional_bytes(pid: int) -> int:
    """The same, with pages that several share counted once: dear to ask for, asked before a kill."""
    return sum(own_proportional_bytes(one) for one in (pid, *kernel.descendants_of(pid)))


def own_proportional_bytes(pid: int) -> int:
    """The same of one process alone."""
    return _field(f"/proc/{pid}/smaps_rollup", b"Pss_Anon:")


def _field(path: str, name: bytes) -> int:
    for line in kernel.read(path).splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
