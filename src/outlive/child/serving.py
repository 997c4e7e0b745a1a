"""A child: it receives a job, lets attempt.py run it, reports its end, and exits or receives another of that task."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from atexit import _run_exitfuncs
from collections.abc import Mapping
from functools import partial
from os import _exit
from resource import RUSAGE_SELF, getrusage
from sys import byteorder
from typing import NamedTuple

from outlive import importing, job_gateway, linux
from outlive.arguments import Codec
from outlive.child import awaiting, log_records, stops, telemetry
from outlive.child.attempt import Runnable, attempt
from outlive.child.boundary import CopiesExit, ProcessStart
from outlive.child.channel import Channel, SupervisorGone
from outlive.child.cleanliness import Origin
from outlive.child.meter import measure
from outlive.child.telemetry import UNWATCHED, Watchers
from outlive.errors import AppNotFound
from outlive.policy import Policy
from outlive.protocol import STACK_SIGNAL, Imported, Run, encode_frame, write_tickets

Tasks = Mapping[str, Runnable]


class Inheritance(NamedTuple):
    """What a child has from its zygote. Log records of the app are kept from this level on."""

    app: str
    log_level: str
    tasks: Tasks
    channel: Channel
    watchers: Watchers
    start: ProcessStart
    oom_score: bytes = b""


NOT_IMPORTED = 3
OOM_SCORE = 500  # How much rather than the supervisor, its parent and the zygote the kernel kills a child.
REHEARSALS = 20  # Python specialises code that has run about eight times.
_SIGCHLD, _SIGHUP, _SIGINT, _SIGKILL = map(int, (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGKILL))
_DEFAULT = int(signal.SIG_DFL)


def import_app(name: str, log_level: str) -> importing.App:
    """Import the app, and send its log records to the supervisor. A copy that the module forks exits here."""
    with CopiesExit(os.getpid()):
        app = importing.import_app(name)
    url = app.settings.get("database_url")
    job_gateway.database_url = None if url is None else str(url)
    log_records.send(log_level)
    return app


def install_handlers(stack: int) -> None:
    """Let signals write the stack to this descriptor. Done before the fork, it makes no child copy a page."""
    faulthandler.enable(stack, all_threads=True)
    signal.signal(signal.SIGTERM, partial(awaiting.on_stop, stack))
    faulthandler.register(signal.SIGTERM, stack, all_threads=True, chain=True)
    faulthandler.register(STACK_SIGNAL, stack, all_threads=True)  # A job may have replaced what SIGTERM does.


def rehearse(stack: int) -> Channel:
    """Run an empty job a few times in the zygote, unseen from outside: children inherit an interpreter that is warm,
    and the channel, because making one would copy another thirty pages in each."""
    channel = Channel(socket.socket(socket.AF_UNIX), os.open(os.devnull, os.O_RDONLY), stack)
    saved = [os.dup(descriptor) for descriptor in (0, 1, 2)]
    read, write = os.pipe()
    tickets, put = os.pipe()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        task = _EmptyTask()
        for _ in range(REHEARSALS):
            _shed_zygote(write)
            os.write(put, write_tickets([0]))
            ours.sendall(encode_frame(Run(0, b"", "", 1, b"{}", last=True, max_result_bytes=100)))
            channel.adopt(os.dup(theirs.fileno()), os.dup(tickets), os.dup(stack))
            before, run = getrusage(RUSAGE_SELF), channel.receive()
            done = attempt({"": task}, run, channel, watchers=UNWATCHED)
            measure(done, before, preload=True, last=True)
            channel.send(done)
    for descriptor, number in zip(saved, (0, 1, 2), strict=True):
        os.dup2(descriptor, number)
    for descriptor in (*saved, read, write, tickets, put):
        os.close(descriptor)
    no_socket, no_tickets = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
    channel.adopt(no_socket, no_tickets, os.dup(stack))
    return channel


class _EmptyTask:
    policy = Policy()
    surroundings = ()

    def __init__(self) -> None:
        self.codec = Codec("", self.function)

    def function(self) -> None:
        pass


def main(inherited: Inheritance, output: int) -> int:
    """Turn the fork of a zygote into a child, and serve."""
    os.setsid()
    linux.when_parent_dies(_SIGKILL)
    linux.prefer_for_oom_kill(inherited.oom_score)
    _shed_zygote(output)
    code = serve(inherited)
    _run_exitfuncs()  # What was registered since the fork: the zygote has none, so none runs in each of its children.
    return code


def _shed_zygote(output: int) -> None:
    """Replace what a job must not share with its zygote: signal handlers, orphans, output and random numbers."""
    linux.handle_signal(_SIGCHLD, _DEFAULT)
    linux.handle_signal(_SIGHUP, _DEFAULT)
    linux.handle_signal(_SIGINT, stops.on_stop)
    linux.become_subreaper()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    os.close(nothing)
    _reseed()


def serve(inherited: Inheritance, first: Run | None = None) -> int:
    """Run jobs, beginning with `first`, until one is the last or the supervisor is gone."""
    _, _, tasks, channel, watchers, start, _ = inherited
    job_gateway.gateway = channel
    origin: Origin | None = None
    try:  # Not contextlib.suppress: each fork pays for the pages that it writes to.
        while True:
            run = first or channel.receive()
            if run.shared:
                from outlive.child import sharing  # The zygote has imported it.

                return sharing.serve(tasks, run, channel, watchers, start)
            policy = tasks[run.task].policy if run.task in tasks else None
            if first is None and policy is not None and not policy.preload:
                _exec(inherited, run)
            not_started = start.run(channel.pid) if start.due and policy is not None else None
            if origin is None and policy is not None and policy.recycle_after == "clean":
                origin = Origin((channel.descriptor, channel.stack, channel.tickets))
            before = getrusage(RUSAGE_SELF)
            done = attempt(tasks, run, channel, watchers=watchers, not_started=not_started, lifespans=start.lifespans)
            if policy is not None and done.took_s >= 0:
                measure(done, before, preload=policy.preload, last=run.last)
            if origin is not None and not run.last:
                done.changed = origin.change()
                if done.changed is None:
                    _reseed()  # The job may have seeded the generators, so that they draw numbers that are known.
            channel.send(done)
            if run.last or done.changed:
                break
            first = None
    except (SupervisorGone, ConnectionResetError, BrokenPipeError):
        pass
    watchers.flush()
    return 0


def _exec(inherited: Inheritance, run: Run) -> None:
    """Continue in a new interpreter, for code that does not work after a fork. Socket, output and pid stay the same."""
    channel = inherited.channel
    handover = os.memfd_create("outlive-handover")
    os.write(handover, channel.unfinished(run))
    descriptors = (channel.descriptor, channel.stack, channel.tickets, handover)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    numbers = map(str, descriptors)
    try:
        os.execv(sys.executable, [sys.executable, "-m", "outlive.child.serving", *inherited[:2], *numbers])
    except OSError as error:
        print(f"{sys.executable} can't be executed: {error}", file=sys.stderr, flush=True)
        _exit(NOT_IMPORTED)


def _reseed() -> None:
    """Seed the random generators: children of one zygote must not draw the same numbers."""
    if random := sys.modules.get("random"):
        random.seed(int.from_bytes(os.urandom(32), byteorder))  # Without a number, it takes four times as long.
    if numpy_random := sys.modules.get("numpy.random"):  # numpy loads it at its first use.
        numpy_random.seed()


def main_after_exec(name: str, log_level: str, sock: int, stack: int, tickets: int, handover: int) -> int:
    """Import the app in the new interpreter that `_exec` has started, and serve."""
    unfinished = os.pread(handover, os.fstat(handover).st_size, 0)
    os.close(handover)
    for descriptor in (sock, stack, tickets):
        os.set_inheritable(descriptor, False)
    stops.job_has_begun()
    install_handlers(stack)
    signal.signal(signal.SIGINT, stops.on_stop)
    channel = Channel(socket.socket(fileno=sock), tickets, stack)
    run = channel.resume(unfinished)
    try:
        app = import_app(name, log_level)
    except AppNotFound as error:
        print(error, file=sys.stderr, flush=True)
        return NOT_IMPORTED
    watchers = telemetry.start(app, channel)
    channel.send(Imported(run.token))
    start = ProcessStart(app.process_starts, app.lifespans)
    code = serve(Inheritance(name, log_level, app.tasks, channel, watchers, start), run)
    _run_exitfuncs()
    return code


if __name__ == "__main__":
    _, name, log_level, *descriptors = sys.argv
    _exit(main_after_exec(name, log_level, *map(int, descriptors)))
