"""The zygote: it imports the app once, then only forks and reaps. It is single-threaded and has no connection.

The supervisor execs it before it opens any connection: `python -m outlive.child.zygote FD MODULE:APP LEVEL`.
It forks parents, and each parent forks the children of one slot, in the same way and with a control socket of its own:
a job that kills or stops its parent harms no other job, and jobs outlive their zygote. Each of them sees EOF on its
control socket when the supervisor dies, kills all that is below it, and exits.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback

from outlive import config as configuration
from outlive import linux, protocol
from outlive.child import serving, steps, telemetry
from outlive.child.boundary import ProcessStart
from outlive.child.serving import Inheritance
from outlive.errors import AppNotFound, BadArguments, ConfigError
from outlive.importing import App
from outlive.linux import exit_at_once as _exit
from outlive.policy import TaskRow, task_row

OOM_SCORE = 250  # How much rather than the supervisor the kernel kills a zygote or a parent.
STRAYS_S = 0.2  # How long the end of a job waits for its leftover processes to die of SIGKILL.
END_S = 2.0
PAUSE_S = 0.0005
FEW_BYTES, MANY_BYTES = 256, 65536  # Each fork pays for the pages that a large buffer makes C write to.
DESCRIPTORS_BYTES = socket.CMSG_SPACE(8 * array.array("i").itemsize)
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_SIGCONT = int(signal.SIGCONT)  # A job may have stopped a process that has to act when the one above it dies.


class Zygote:
    """The zygote, which forks parents, or such a parent, which forks children. A set says which ones it has forked."""

    def __init__(self, control: socket.socket, inherited: Inheritance, *, is_parent: bool) -> None:
        self.control, self.inherited, self.is_parent = control, inherited, is_parent
        self.children: set[int] = set()
        self.left: set[int] = set()  # Leftover processes of jobs that are still dying, or can't be killed.
        pid = os.getpid()
        self.offspring = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        """The kernel's list of children, kept open because it is read for every job."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.wake_read = wake_read
        self.own = (control.fileno(), wake_read, wake_write, self.offspring)  # A fork must not share these.

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.wake_read:
                    try:  # noqa: SIM105  # Each fork would pay for the pages of contextlib.suppress.
                        os.read(self.wake_read, FEW_BYTES)
                    except BlockingIOError:
                        pass
                    self.reap()
                elif not self.obey():
                    self.end_all()
                    return

    def obey(self) -> bool:
        """Serve one request; False when the supervisor is gone."""
        try:
            data, descriptors = _receive(self.control)
        except ConnectionResetError:
            return False
        if not data:
            return False
        self.fork(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def fork(self, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self.send(protocol.NotForked(f"fork failed: {error.strerror}"))
            return
        if pid == 0:
            code = 70
            try:
                signal.set_wakeup_fd(-1)
                for descriptor in self.own:
                    os.close(descriptor)
                code = self._become_child(*descriptors) if self.is_parent else self._become_parent(*descriptors)
            finally:
                _exit(code)  # The original, from before the import: a job may have replaced it.
        self.children.add(pid)
        self.send(protocol.Forked(pid))

    def _become_parent(self, control: int) -> int:
        """Go on as the parent of one slot's children, in a session of its own."""
        os.setsid()
        linux.when_parent_dies(_SIGCONT)
        linux.become_subreaper()
        Zygote(socket.socket(fileno=control), self.inherited, is_parent=True).run()
        return 0

    def _become_child(self, sock: int, output: int, stack: int, tickets: int) -> int:
        self.inherited.channel.adopt(sock, tickets, stack)
        return serving.main(self.inherited, output)

    def reap(self) -> None:
        """Reap dead children, and kill their leftover processes before their ends are reported."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            if seen.si_pid in self.children:
                linux.kill_group(seen.si_pid)
            pid, status, usage = os.wait4(seen.si_pid, 0)
            mine = pid in self.children
            self.children.discard(pid)
            self.left.discard(pid)
            exits = self.kill_strays()
            if mine or not self.is_parent:
                exits.append(_exited(pid, status, usage))
            for exit in exits:
                self.send(exit)

    def kill_strays(self) -> list[protocol.Exited]:
        """Kill children that this process did not fork: the kernel gave them to it when their job died. All but those
        that die slowly or belong to another user are gone before the job's end is reported. In the zygote they are
        children of a dead parent, which the supervisor may know: their exits are returned."""
        exits = []
        deadline = 0.0
        while strays := self.all_children() - self.children - self.left:
            deadline = deadline or time.monotonic() + STRAYS_S
            late = time.monotonic() > deadline
            for pid in strays:
                killed = linux.kill(pid)
                try:
                    gone, status, usage = os.wait4(pid, os.WNOHANG)
                except ChildProcessError:  # A thread of the app has reaped it.
                    continue
                if gone and not self.is_parent:
                    exits.append(_exited(pid, status, usage))
                if not gone and (late or not killed):
                    self.left.add(pid)
                    if not killed:
                        self.send(protocol.Left(pid))
            time.sleep(PAUSE_S)
        return exits

    def all_children(self) -> set[int]:
        pids = os.pread(self.offspring, FEW_BYTES, 0)
        if len(pids) == FEW_BYTES:  # There may be more.
            pids = os.pread(self.offspring, MANY_BYTES, 0)
        return set(map(int, pids.split()))

    def end_all(self) -> None:
        """The supervisor is gone: kill everything that can be killed."""
        deadline = time.monotonic() + END_S
        while (left := linux.descendants_of(os.getpid())) and time.monotonic() < deadline:
            killed = [linux.kill(pid) for pid in left]
            for pid in self.all_children():
                linux.reaped(pid)
            if not any(killed):
                return
            time.sleep(PAUSE_S)

    def send(self, message: protocol.FromZygote) -> None:
        try:  # Not contextlib.suppress: each fork pays for the pages that it writes to.
            self.control.sendall(protocol.encode_frame(message))
        except (BrokenPipeError, ConnectionResetError):
            return  # The supervisor is gone: the next read ends this process.


def prepare(name: str, log_level: str) -> tuple[Inheritance, protocol.Ready]:
    """Import the app, make its memory cheap to share, and say what it declares."""
    linux.become_subreaper()
    os.environ.pop("GLIBC_TUNABLES", None)  # It was set for this process only; jobs do not inherit it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # Children inherit this setting and the next.
    oom_score = linux.oom_score_above(serving.OOM_SCORE)  # That of its children.
    linux.prefer_for_oom_kill(linux.oom_score_above(OOM_SCORE))  # Parents inherit it.
    app = serving.import_app(name, log_level)
    unused = _make_codecs(app)
    if any(task.policy.share > 1 for task in app.tasks.values()):
        from outlive.child import sharing  # noqa: F401  # Children inherit it, with asyncio.
    stack = os.memfd_create("outlive-stack")
    channel = serving.rehearse(stack)
    watchers = telemetry.start(app, channel)
    signal.signal(signal.SIGCHLD, _wake)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # The supervisor decides when this process ends.
    serving.install_handlers(stack)
    limits, schedules = [one.limits for one in app.sources.values()], list(app.schedules.values())
    silent = telemetry.reports_elsewhere(app)
    ready = protocol.Ready(
        _facts_of(app), limits, schedules, _threads(), dict(app.settings), watchers.sentry, silent, unused
    )
    atexit._clear()  # It ends without these, and what the import has made is all children's: none may remove it.
    gc.collect()
    gc.freeze()
    start = ProcessStart(app.process_starts, app.lifespans)
    return Inheritance(name, log_level, app.tasks, channel, watchers, start, oom_score), ready


def _make_codecs(app: App) -> list[str]:
    """Make what decodes the arguments of each task, before any fork: otherwise each child would make it. Arguments of
    schedules are checked again, because annotations may name what came later in their module.

    Returns what is to be said of results whose annotations are not used: later, the work would be done.
    """
    unused = {task.codec.unused_result() for task in app.tasks.values()}
    unused |= {one and f"the step {one}" for one in (step.codec.unused_result() for step in steps.DECLARED)}
    for schedule in app.schedules.values():
        try:
            app.tasks[schedule.task].codec.unpack(schedule.args)
        except BadArguments as error:
            raise AppNotFound(f"the schedule {schedule.name} of {schedule.task} is refused: {error}") from None
    return sorted(unused - {""})


def _facts_of(app: App) -> list[TaskRow]:
    config = configuration.load(app=app.settings)
    facts = []
    for name, task in app.tasks.items():
        # What runs a task of Django takes any arguments, and says the parameters of the task's own function.
        parameters = getattr(task.function, "outlive_parameters", task.codec.parameters)()
        facts.append(task_row(name, task.policy, config, task.app.follower, task.function, parameters))
    return facts


def _wake(*_: object) -> None:
    """The handler of SIGCHLD. A function that stays: to free one would cost each child five pages."""


def _exited(pid: int, status: int, usage: resource.struct_rusage) -> protocol.Exited:
    return protocol.Exited(pid, status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and the descriptors that came with it. No program inherits them: socket.recv_fds drops its flags."""
    data, ancillary, _, _ = control.recvmsg(FEW_BYTES, DESCRIPTORS_BYTES, _CLOEXEC)
    return data, array.array("i", b"".join([content for _, _, content in ancillary])).tolist()


def _threads() -> list[str]:
    """The names of other threads: a fork does not have them."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
                names.append(file.read().strip())
    return names


def main(descriptor: int, app: str, log_level: str) -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Stopping the tree is up to the supervisor. Not SIG_IGN: processes started by the import would inherit that.
        signal.signal(number, lambda *_: None)
    linux.unblock_signals()
    linux.when_parent_dies(_SIGCONT)
    control = socket.socket(fileno=descriptor)
    try:
        inherited, ready = prepare(app, log_level)
    except BaseException as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            control.sendall(protocol.encode_frame(_broken(app, error)))
        return serving.NOT_IMPORTED
    zygote = Zygote(control, inherited, is_parent=False)
    zygote.send(ready)
    zygote.run()
    return 0


def _broken(app: str, error: BaseException) -> protocol.Broken:
    """Why the app can't be served. A ConfigError says what to do, and a traceback would only hide it."""
    if isinstance(error, AppNotFound):
        return protocol.Broken(str(error), error.traceback)
    known = isinstance(error, ConfigError)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    seen = "" if known else traceback.format_exc()
    return protocol.Broken(f"{app} is imported, but can't be made ready: {reason}", seen)


if __name__ == "__main__":
    _exit(main(int(sys.argv[1]), *sys.argv[2:]))  # Threads that the app has started are not waited for.
