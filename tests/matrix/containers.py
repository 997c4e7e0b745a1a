"""The image of deploy/Dockerfile, and podman, which runs it.

The base image is made of Debian's packages, because no registry is needed for that.
"""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE, IMAGE = "localhost/outlive-test-base", "localhost/outlive-test"
PACKAGES = "python3,python3-venv,ca-certificates,systemd,systemd-sysv"
PROGRAMS = ("podman", "buildah", "mmdebstrap", "runc")
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
ENGINE = ("--cgroup-manager=cgroupfs", "--runtime=runc")  # crun refuses machines with both versions of cgroups.
LIMITS = (f"--ulimit=nofile={FILES}:{FILES}", "--ulimit=nproc=10000:10000")


def needs(*programs: str) -> list[pytest.MarkDecorator]:
    """The marks of tests with containers. They are skipped where one of their programs is missing."""
    wanted = (*PROGRAMS, *programs)
    missing = os.getuid() != 0 or not all(map(shutil.which, wanted))
    return [
        pytest.mark.long,
        pytest.mark.timeout(1800),
        pytest.mark.skipif(missing, reason=f"needs root, {', '.join(wanted)}"),
    ]


def run(*words: object, within_s: float = 60, environ: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, words)],
        capture_output=True,
        text=True,
        timeout=within_s,
        stdin=subprocess.DEVNULL,
        env=environ,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()


def podman(*words: object, within_s: float = 60) -> str:
    return run("podman", *ENGINE, *words, within_s=within_s)


def make_base() -> None:
    mirror = "deb http://deb.debian.org/debian bookworm main"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        tree = f"{folder}/tree.tar"
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", tree, mirror, within_s=900)
        podman("import", tree, BASE, within_s=300)


def build(file: Path, name: str, context: Path, *words: str) -> None:
    """Build an image on the base, which is made once, and kept."""
    if subprocess.run(["podman", "image", "exists", BASE]).returncode != 0:
        make_base()
    run(
        "buildah", *ENGINE, "bud", "--layers", "--network=host", *LIMITS, "--format=docker", *words,
        f"--build-arg=BASE={BASE}", "-f", file, "-t", name, context, within_s=900,
    )  # fmt: skip
