"""What an attempt took: its CPU and memory, and what only its own process can know about its end."""

from __future__ import annotations

import os
import sys
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage, struct_rusage

from outlive import linux
from outlive.child import stops
from outlive.child.boundary import guarded
from outlive.protocol import MARK, Done
from outlive.states import Outcome

STDOUT = 1


def measure(done: Done, before: struct_rusage, *, preload: bool, last: bool) -> None:
    """Add to a job's end what only this process can measure. `before`: what it had used when the job began."""
    guarded(_flush_output)
    done.marked = _mark_output(done.token)  # After the flush: the mark must follow all that this job has printed.
    after = getrusage(RUSAGE_SELF)
    done.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # A task without preload runs after an exec, and ru_maxrss then still has the zygote's peak.
    done.peak_memory_bytes = after.ru_maxrss * 1024 if preload else linux.peak_bytes(os.getpid())
    if not last and (after.ru_maxrss > before.ru_maxrss or not preload):
        linux.forget_peak()  # The next job in this child must not inherit it.
    done.process_ended = done.outcome is Outcome.FAILED and _any_subprocess_ended()
    done.stopped_by = stops.last_signal


def _flush_output() -> None:
    """The job may have closed a stream, or put anything in its place."""
    try:
        sys.stdout.flush()
    finally:
        sys.stderr.flush()


def _mark_output(token: int) -> bool:
    """If some output of this job is still unread, write a mark after it. Standard output and error share one pipe."""
    try:
        unread = linux.unread_bytes(STDOUT)
        if unread:
            os.write(STDOUT, MARK % token)
    except OSError:  # The job has closed its output, or put something else in its place.
        return False
    return unread > 0


def _any_subprocess_ended() -> bool:
    """Whether a process that this child has started has ended, if only in an earlier job: that delays a report."""
    if getrusage(RUSAGE_CHILDREN).ru_minflt:  # Every process has page faults, so one was reaped.
        return True
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False
