"""The output of one child: its tail is kept for the attempt, and each line is logged.

It is a stream, which the mark of a job that has ended divides. What comes after the mark waits until the supervisor has
read that end too. A job that floods fills neither memory nor log: the lines that are logged per second are limited.
"""

from __future__ import annotations

import math
import time

from outlive import output
from outlive.model import Claimed
from outlive.protocol import MARK
from outlive.worker.reporting import job_log

TAIL_BYTES = 64 * 1024
MAX_LINE_BYTES = 70_000
"""A longer line is logged in pieces. A log record is never that long."""
LOGGED_LINES = 200
LOGGED_BYTES = 64 * 1024
"""How much of one attempt is logged per second."""


class JobOutput:
    def __init__(self) -> None:
        self._early = bytearray()
        """What waits: the current job's mark with what came after it, or what was printed while there was no job."""
        self._left_out = 0
        self._begin()

    def _begin(self) -> None:
        self._tail = bytearray()
        self._partial = b""
        """What was printed since the last line break."""
        self.lines = 0
        """How many whole lines the current job has printed."""
        self._marked = False
        """The mark has come: the job has ended, and its end is about to be read."""
        self._since, self._lines_left, self._bytes_left = -math.inf, 0, 0
        """When the present second of the log began, and what may be logged in it."""

    def add(self, data: bytes, job: Claimed | None) -> bool:
        """Add what a child has printed since this job began, or while it had none. Returns whether the mark came."""
        if job is None or self._marked:
            self._early += data
            if len(self._early) > 2 * TAIL_BYTES:
                del self._early[:-TAIL_BYTES]
            return self._marked
        data = self._partial + bytes(self._early) + data
        self._early.clear()
        if (at := data.find(MARK % job.token)) >= 0:
            self._marked = True
            self._early += data[at:]
            data = data[:at]
        self._split(data, job)
        return self._marked

    def _split(self, data: bytes, job: Claimed) -> None:
        """Keep and log the whole lines. A line that does not end is logged in pieces."""
        at = data.rfind(b"\n") + 1
        if len(data) - at > MAX_LINE_BYTES:
            at = len(data) - len(MARK % job.token)  # It may have come in part.
        whole, self._partial = data[:at], data[at:]
        if not whole:
            return
        self.lines += output.count_in(whole)
        self._tail += whole
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        self._log(whole, job)

    def end(self, job: Claimed, *, marked: bool = False) -> str | None:
        """The output of the job that has just ended: up to the mark, if the child wrote one."""
        if not (self._tail or self._partial or self._early):
            return None
        if self.add(b"", job):  # The last one counts: the job itself may have written others before.
            own, mark, after = self._early.rpartition(MARK % job.token)
            if not (marked and mark):
                own, after = self._early, bytearray()
            self._split(self._partial + bytes(own), job)
            self._early = after
        if self._partial:
            self._tail += self._partial
            self.lines += 1
            self._log(self._partial, job)
        text = self._kept()
        self._log_left_out(job)
        self._begin()
        return text or None

    def so_far(self) -> tuple[int, str]:
        """How many whole lines the current job has printed, and the last of them."""
        return self.lines, self._kept()

    def _kept(self) -> str:
        tail = bytes(self._tail[-TAIL_BYTES:])
        if len(self._tail) > TAIL_BYTES:  # Its first line was cut.
            tail = tail[tail.find(b"\n", 0, -1) + 1 :]
        return output.kept(tail, self.lines)

    def _log(self, lines: bytes, job: Claimed) -> None:
        """Log these lines, unless the job has logged too much in this second."""
        if (now := time.monotonic()) - self._since >= 1.0:
            self._since, self._lines_left, self._bytes_left = now, LOGGED_LINES, LOGGED_BYTES
            self._log_left_out(job)
        if not job_log.shows_prints():
            named = [line for line in lines.split(b"\n") if line.startswith(job_log.MAY_NAME_LEVEL)]
            lines = b"".join(line + b"\n" for line in named if job_log.shows(line))
        if lines and not lines.endswith(b"\n"):  # A last line without a line break, or a piece.
            lines += b"\n"
        *first, rest = lines.split(b"\n", self._lines_left)
        for line in first:
            if self._bytes_left <= 0:
                self._left_out += 1
            elif job_log.printed(job, line):
                self._lines_left -= 1
                self._bytes_left -= len(line)
        self._left_out += rest.count(b"\n")

    def _log_left_out(self, job: Claimed) -> None:
        if self._left_out:
            job_log.left_out(job, self._left_out)
            self._left_out = 0


class ChildOutput:
    """What a shared child prints that is no job's: that of what jobs share, of native code, of their subprocesses."""

    def __init__(self) -> None:
        self._partial = b""
        self._since, self._lines_left = -math.inf, 0
        self.last = ""
        """The last line, which may say why the child died."""

    def add(self, data: bytes, pid: int, task: str | None) -> None:
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[-MAX_LINE_BYTES:]
        if (now := time.monotonic()) - self._since >= 1.0:
            self._since, self._lines_left = now, LOGGED_LINES
        for line in filter(None, lines):
            self.last = output.as_text(line.decode(errors="replace")).replace("\0", "")
            if self._lines_left > 0 and job_log.printed_by_shared(pid, task, line):
                self._lines_left -= 1
