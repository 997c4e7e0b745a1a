"""doctor: checks this machine, the server's settings, the schema, jobs and workers. Each problem has a next step."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psycopg
import typer

from outlive import config, db, migrate, operations, pooling, store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, app, command
from outlive.errors import SchemaMismatch
from outlive.humanize import counted, size
from outlive.operations import findings, selection
from outlive.operations.findings import Finding, checked
from outlive.states import State
from outlive.worker.limits import cgroups

T = TypeVar("T")
FEW_FILES = 1024
FILES_PER_SLOT = 16
PROCESSES_PER_SLOT = 3
FEW_PROCESSES = 200
SMALL_SHARED_BYTES = 64 * 1024 * 1024
SMALL_MEMORY_BYTES = 256 * 1024 * 1024
NEAR = 0.9
LOCK_WAIT_S = findings.LOCK_S
"""How long each look waits for a lock: one that has kept it waiting is old enough to be a finding at the end."""
_REFUSALS = (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable)
_MARKS = {"fine": ("✓", "green"), "unknown": ("?", "yellow"), "advice": ("!", "yellow"), "problem": ("✗", "bold red")}


@command(app, example="doctor --json")
def doctor(context: CommandContext, json: Json = False) -> None:
    """Check this machine, the database, the jobs and the workers.

    Exit code 1 if there is a problem, or if a check could not be made. What could not be seen is marked with a question
    mark, with what to do.
    """
    found = [*_examine_database(context), *_examine_machine(context.config.slots or os.cpu_count() or 1)]
    if json:
        screen.print_json([{"level": one.level, "what": one.what, "next": one.next} for one in found])
    else:
        for one in found:
            mark, style = _MARKS[one.level]
            screen.say((f"{mark} ", style), one.what, (f"\n    → {one.next}" if one.next else "", "cyan"))
    if (unseen := sum(map(_can_be_seen, found))) and not json:
        screen.complain(f"{counted(unseen, 'check')} could not be made: see the question marks")
    raise typer.Exit(exit_code(found))


def exit_code(found: Iterable[Finding]) -> int:
    return int(any(one.level == "problem" or _can_be_seen(one) for one in found))


def _can_be_seen(one: Finding) -> bool:
    """Whether a finding is a check that could not be made here, and can be. No right lets SQL see a disk."""
    return one.level == "unknown" and one.next is not None


def _examine_database(context: CommandContext) -> Iterator[Finding]:
    """Findings about the server and the jobs. A database that can't be reached is an error (exit code 4)."""
    file = config.file_in_force(context.config_file)
    yield Finding("fine", f"settings are read from {file.absolute()}" if file else "no outlive.toml is in use")
    connection, embedded = context.connection, context.config.database_url is None
    if embedded:
        cure = "set OUTLIVE_DATABASE_URL to share the jobs with other machines"
        yield Finding("advice", f"jobs are in {context.place}, at {context.address()}", cure)
    else:
        yield Finding("fine", f"{context.place}, answers as {connection.info.user}")
    with db.translated_errors():
        if embedded:
            migrate.migrate(connection)
        context.limit_lock_waits(LOCK_WAIT_S)
        try:
            migrate.check_encoding(connection)
            migrate.check(connection, context.config.database_url)
        except SchemaMismatch as error:
            what, _, hint = str(error).partition(": ")
            yield Finding("problem", what, hint)
            return
        except _REFUSALS as error:
            yield _refused("the version of the schema", error)
        else:
            yield Finding("fine", f"the schema has version {migrate.installed(connection)}")
    if context.config.database_url and connection.pooled:
        yield _judge_pooler(context.config.database_url, context.config.session_url)
    looks = _Looks(connection)
    if (server := looks("the settings of the server", store.health())) is not None:
        yield from findings.judge_server(server[0])
        yield from findings.judge_vacuum(server[0])
        here = server[0]["beside"] and server[0]["data_directory"] is not None
        yield findings.judge_disk(server[0], _room(server[0]["data_directory"]) if here else None)
        if not server[0]["standby"]:
            looks("whether the server can write", store.write_some())
    before = time.time()
    if (there := looks("the clock of the database", store.clock())) is not None:
        yield findings.judge_clock(there - (before + time.time()) / 2, doubt_s=(time.time() - before) / 2)
    health = looks("stuck jobs, the quarantine and workers", store.job_health())
    workers = looks("the workers", store.list_workers())
    if server is not None and workers is not None:
        yield from findings.judge_fleet(server[0], workers)
        if not server[0]["standby"]:  # Where workers log in, and what they show of themselves, is not on it.
            yield from findings.judge_roles(looks("the roles of the workers", store.limited_roles()) or [])
    yield from findings.judge_work(
        None if health is None else health[0],
        looks("the queues", store.list_queues()),
        workers,
        looks("the lanes", store.list_lanes(limit=10_000)),
        looks("the tasks without a worker", store.unserved_lanes()),
        looks("the sources", store.list_sources()),
        looks("the schedules", store.list_schedules()),
    )
    failed = store.JobFilter(states=(State.FAILED,), since_s=findings.DAY_S)
    with looks.at("the jobs that failed"):
        yield findings.judge_failures(operations.run(selection.count(failed), looks.run))
    yield from findings.judge_locks(looks("the locks", store.lock_holders()) or [])  # Last: see LOCK_WAIT_S.
    yield from looks.findings


def _judge_pooler(url: str, session_url: str | None) -> Finding:
    """Whether workers have a session of their own, on which they show their life and listen."""
    with db.translated_errors():
        if pooling.keeps_sessions(url):
            return Finding("fine", "a pooler in session mode is between here and the server")
        bypassed = session_url is not None and pooling.keeps_sessions(session_url)
    pooler = "a pooler in transaction mode is between here and the server"
    cure = "set session_url (OUTLIVE_SESSION_URL) to the address of the server itself, or of a pool in session mode"
    late = (f"{pooler}: a worker notices jobs and deaths later", cure)
    return checked(bypassed, f"{pooler}, and session_url bypasses it", late)


class _Looks:
    """Asks the database, and goes on where it refuses. `findings` has what could not be seen, and a full disk."""

    def __init__(self, connection: db.Connection) -> None:
        self._connection = connection
        self.findings: list[Finding] = []

    def __call__(self, what: str, statement: db.Statement[T]) -> T | None:
        with self.at(what):
            return self.run(statement)
        return None

    def run(self, statement: db.Statement[T]) -> T:
        return db.run(self._connection, statement)

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        with db.translated_errors():
            try:
                yield
            except _REFUSALS as error:
                self.findings.append(_refused(what, error))
            except psycopg.errors.DiskFull as error:
                full = f"the server's disk is full: {error.diag.message_primary}"
                self.findings.append(Finding("problem", full, "make room on it; then workers continue by themselves"))


def _refused(what: str, error: psycopg.Error) -> Finding:
    cause, cure = f"{error.diag.message_primary}", "run this as a member of outlive_worker"
    if isinstance(error, psycopg.errors.LockNotAvailable):
        cause, cure = "another transaction holds a lock", "run this again when it has ended"
    return Finding("unknown", f"could not look at {what}: {cause}", cure)


def _room(place: str | os.PathLike[str]) -> tuple[int, int] | None:
    """How many bytes are free there, and how many there are."""
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _examine_machine(slots: int) -> Iterator[Finding]:
    """Findings about the limits that a worker started like this command would have."""
    yield _open_files(slots)
    yield _processes(slots)
    yield from _shared_memory()
    yield from judge_cgroup(_own_cgroup())
    how = "memory is measured every 50 ms: no cgroup is writable here"
    if place := cgroups.find():
        how = f"memory is limited by {place} for a worker started like this, and measured every 50 ms"
    yield Finding("fine", how)


def _open_files(slots: int) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = max(FEW_FILES, FILES_PER_SLOT * slots), resource.RLIM_INFINITY
    what = f"a process may open only {soft} files: a worker with {counted(slots, 'slot')}, or a job with many "
    raised = needed if hard == unlimited or hard >= needed else hard
    return checked(
        soft == unlimited or soft >= needed,
        f"a process may open {'any number of' if soft == unlimited else f'{soft:,}'} files",
        (f"{what}connections, runs out", f"ulimit -n {raised}; or LimitNOFILE= in the systemd unit"),
    )


def _processes(slots: int) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:  # The kernel exempts root.
        return Finding("fine", "the number of processes is not limited for this user")
    used, needed = _processes_of(os.getuid()), max(FEW_PROCESSES, PROCESSES_PER_SLOT * slots)
    what = f"this user has {used} of {soft} processes"
    cure = f"ulimit -u {used + needed}; or LimitNPROC= in the systemd unit"
    return checked(soft - used >= needed, what, (f"{what}: jobs can't be forked when the limit is reached", cure))


def _processes_of(user: int) -> int:
    found = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # It has ended.
            found += entry.name.isdecimal() and entry.stat().st_uid == user
    return found


def _shared_memory() -> Iterator[Finding]:
    if room := _room("/dev/shm"):
        free, whole = room
        what = f"/dev/shm has {size(free)} free of {size(whole)}"
        cure = "docker run --shm-size=1g; or mount -o remount,size=1g /dev/shm"
        enough = whole > SMALL_SHARED_BYTES and free >= SMALL_SHARED_BYTES
        yield checked(enough, what, (f"{what}: browsers and model code die with SIGBUS", cure))


def _own_cgroup() -> Path | None:
    """The directory of this process' cgroup; None without cgroups of version 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::") and (found := Path("/sys/fs/cgroup" + line[3:])).is_dir():
                return found
    return None


def judge_cgroup(place: Path | None) -> Iterator[Finding]:
    """The limits of the nearest cgroup above this process that has any."""
    if place is None:
        return
    if (memory := _nearest(place, "memory")) is None:
        yield Finding("fine", "no cgroup limits the memory here")
    else:
        used, most = memory
        what = f"the cgroup of this process uses {size(used)} of {size(most)} memory"
        enough = most >= SMALL_MEMORY_BYTES and used <= NEAR * most
        yield checked(enough, what, (what, "raise its limit, or run fewer slots: --slots"))
    if (pids := _nearest(place, "pids")) is not None:
        used, most = pids
        what = f"the cgroup of this process has {used} of {most} processes"
        cure = "raise its limit: --pids-limit, or TasksMax= in systemd"
        yield checked(most - used >= FEW_PROCESSES, what, (what, cure))


def _nearest(place: Path, controller: str) -> tuple[int, int] | None:
    """How much is used of the tightest limit from here to the root, and that limit."""
    found: list[tuple[int, int]] = []
    for folder in (place, *place.parents):
        with suppress(OSError, ValueError):  # It has no such limit.
            limit = int((folder / f"{controller}.max").read_text())
            found.append((int((folder / f"{controller}.current").read_text()), limit))
    return min(found, key=lambda one: one[1] - one[0], default=None)
