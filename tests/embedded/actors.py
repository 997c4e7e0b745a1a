"""The actors of these tests: user processes, keepers, postmasters, and an ordinary person."""

import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

from outlive.embedded import places
from outlive.embedded.binaries import clean_environment
from tests.waiting import eventually

AM_ROOT = os.geteuid() == 0
SCRIPT = Path(__file__).with_name("user.py")
SOURCE = Path(places.__file__).parent.parent
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

ROOTS_GROUPS = [4, 24] if AM_ROOT else None
"""More groups than root often has, so that one sees whether a server gets rid of them."""

needs_root = pytest.mark.skipif(not AM_ROOT, reason="only root can give files away and run as another user")
needs_debian_15 = pytest.mark.skipif(not (DEBIAN_15 / "initdb").exists(), reason=f"no Postgres 15 in {DEBIAN_15}")


@dataclass(frozen=True)
class Answer:
    took_s: float
    url: str = ""
    error: str = ""


@dataclass(frozen=True)
class Person:
    """The account, the Python and the copy of outlive that a user process has."""

    uid: int
    gid: int
    python: str
    source: Path


class User:
    """A process that uses the server of `directory`, until it is ended."""

    def __init__(self, directory: Path | None, *, env: Mapping[str, str] | None = None, person: Person | None = None):
        self._directory = directory
        python, source = (person.python, person.source) if person else (sys.executable, SOURCE.parent)
        script = source / SCRIPT.name if person else SCRIPT
        self.process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=dict(os.environ) | {"PYTHONPATH": _python_path(source)} | dict(env or {}),
            user=person.uid if person else None,
            group=person.gid if person else None,
            extra_groups=[] if person else ROOTS_GROUPS,
        )
        self.soon_s = 0.0
        """Five seconds, or on a machine that is too busy, as long as the first start with its initdb took."""

    def ask(self, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None) -> None:
        assert self.process.stdin is not None
        directory = str(self._directory) if self._directory else None
        words = {"directory": directory, "settings": settings, "binaries": str(binaries) if binaries else None}
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Answer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the user process died"
        answer = Answer(**json.loads(line))
        self.soon_s = self.soon_s or max(5.0, answer.took_s)
        return answer

    def ensure(self, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None) -> Answer:
        self.ask(settings=settings, binaries=binaries)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class NewUser(Protocol):
    """The fixture `new_user`: starts a user."""

    def __call__(
        self, directory: Path | None, *, env: Mapping[str, str] | None = None, person: Person | None = None
    ) -> User: ...


def _python_path(source: Path) -> str:
    """This source first, then the path of the tests themselves, because outlive needs its dependencies."""
    return os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))


def query(url: str, text: str) -> str:
    """The first value that a query finds, as text."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return str(row[0])


def keeper_of(directory: Path) -> int:
    return int(json.loads((directory / "server.json").read_text())["keeper"])


def postmaster_of(directory: Path) -> int:
    return int(json.loads((directory / "server.json").read_text())["postmaster"])


def processes_at(path: Path) -> list[int]:
    """The keepers, postmasters and initdbs at or below a path, found by their command lines."""
    return [pid for pid, line in _command_lines() if os.fsencode(path) in line and pid != os.getpid()]


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                yield int(name), Path("/proc", name, "cmdline").read_bytes()


def is_alive(pid: int) -> bool:
    """Whether a process is alive. A zombie is not, once all its threads have ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not select.select([process], [], [], 0)[0]
    finally:
        os.close(process)


def owner_of(pid: int) -> str:
    return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name


def kill(*pids: int) -> None:
    """Kill processes with SIGKILL, and wait until other processes see them dead."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, pids)), what=f"{pids} dead")


def run_as_owner_of(path: Path, command: list[str]) -> "subprocess.Popen[bytes]":
    owner = path.stat()
    return subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        env=clean_environment(),
        user=owner.st_uid if AM_ROOT else None,
        group=owner.st_gid if AM_ROOT else None,
        extra_groups=[] if AM_ROOT else None,
    )


def end_everything_at(path: Path) -> None:
    for pid in processes_at(path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    eventually(lambda: not processes_at(path), within_s=20, what=f"everything at {path} ended")
    for pid in _inhabitants_of(path):
        kill(pid)


def _inhabitants_of(path: Path) -> Iterator[int]:
    """The backends that a failed test has left, found by their working directory."""
    for pid, _ in _command_lines():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/cwd").startswith(f"{path}/"):
                yield pid


def ordinary_person(base: Path) -> Person:
    """A user without privileges, who can't read root's Python or checkout and gets readable copies."""
    found = pwd.getpwnam("nobody")
    source = base / "source"
    shutil.copytree(SOURCE / "embedded", source / "outlive" / "embedded", ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("errors.py", "program.py"):
        shutil.copy(SOURCE / module, source / "outlive")
    shutil.copy(SCRIPT, source)
    (source / "outlive" / "__init__.py").touch()  # The embedded part needs nothing else, which this proves as well.
    for folder, _, files in os.walk(source):
        os.chmod(folder, 0o755)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o644)
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if _can_run(python, found):
            return Person(found.pw_uid, found.pw_gid, python, source)
    pytest.skip("no Python of at least 3.11 that the user nobody may run")


def _can_run(python: str, person: pwd.struct_passwd) -> bool:
    asked = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    try:
        answer = subprocess.run(
            asked, cwd="/", capture_output=True, user=person.pw_uid, group=person.pw_gid, extra_groups=[]
        )
    except OSError:
        return False
    return answer.returncode == 0
