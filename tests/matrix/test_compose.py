"""deploy/compose.yaml, run for real by docker-compose 1.29, the oldest that distributions have, and by podman.

What differs from a user's machine is in OVERRIDE: images are made of Debian's packages, and the app waits for files.
"""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.driving.scraping import get
from tests.matrix.containers import BASE, ENGINE, FILES, IMAGE, ROOT, build, needs, podman, run
from tests.waiting import eventually

POSTGRES = "localhost/outlive-test-postgres"
FILE = f"""
FROM {BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql
COPY entry /entry
ENTRYPOINT ["/bin/sh", "/entry"]
"""
ENTRY = """
# What the image postgres:18 makes of its variables.
set -eu
data=/var/lib/postgresql/data
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
cd /
as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
if [ ! -e $data ]; then
  install --directory --owner=postgres $data
  echo "$POSTGRES_PASSWORD" > /tmp/password
  as initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8 --pgdata=$data
  echo "host all all all scram-sha-256" >> $data/pg_hba.conf
  echo "create database $POSTGRES_USER" | as postgres --single -D $data postgres
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D $data -c 'listen_addresses=*' "$@"
"""
OVERRIDE = """
services:
  postgres: {{image: {postgres}}}
  migrate: {{image: {image}}}
  reaper: {{image: {image}}}
  dashboard: {{image: {image}}}
  worker:
    image: {image}
    volumes: ["{folder}/shop.py:/app/shop.py:ro", "{folder}:/shared"]
"""
SHOP = """
import platform
import time
from pathlib import Path

import outlive

app = outlive.App()


@app.task
def wait_for(path: str) -> str:
    Path(path + ".begun").write_text(platform.node())
    while not Path(path).exists():
        time.sleep(0.05)
    return "seen"
"""
ENGINE_CONF = f"""
[containers]
default_ulimits = ["nofile={FILES}:{FILES}", "nproc=10000:10000"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""

NAMES = ("/usr/lib/cni/dnsname", "/usr/lib/podman/aardvark-dns")
pytestmark = [
    *needs("docker-compose"),
    pytest.mark.skipif(
        not any(map(os.path.exists, NAMES)),
        reason="containers would not find each other: apt install golang-github-containernetworking-plugin-dnsname",
    ),
]


@pytest.fixture
def folder(base: Path) -> Path:
    """What the containers share with the test, and the files of the test."""
    folder = base / f"compose-{uuid4().hex[:8]}"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "shop.py").write_text(SHOP)
    (folder / "entry").write_text(ENTRY)
    (folder / "Dockerfile").write_text(FILE)
    (folder / "override.yaml").write_text(OVERRIDE.format(postgres=POSTGRES, image=IMAGE, folder=folder))
    (folder / "containers.conf").write_text(ENGINE_CONF)
    return folder


class Compose:
    """docker-compose with the shipped file, in a project of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        files = (str(ROOT / "deploy" / "compose.yaml"), str(folder / "override.yaml"))
        self.words = ["docker-compose", *(f"--file={file}" for file in files)]
        self.environ = {
            **os.environ,
            "DOCKER_HOST": f"unix://{folder}/podman.sock",
            "COMPOSE_PROJECT_NAME": f"outlive-test-{uuid4().hex[:8]}",
            "POSTGRES_PASSWORD": "a-password-of-the-test",
            "DASHBOARD_TOKEN": "a-token-of-the-test",
            "DASHBOARD_PORT": str(port),
        }

    def __call__(self, *words: str) -> str:
        return run(*self.words, *words, within_s=180, environ=self.environ)


@pytest.fixture
def compose(image: str, folder: Path) -> Iterator[Compose]:
    """All that it has started is removed after the test."""
    build(folder / "Dockerfile", POSTGRES, folder)
    serve = ["podman", "system", "service", "--time=0", f"unix://{folder}/podman.sock"]
    service = subprocess.Popen(serve, env={**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")})
    eventually((folder / "podman.sock").exists, within_s=30, what="podman serves")
    with socket.create_server(("127.0.0.1", 0)) as free:
        compose = Compose(folder, free.getsockname()[1])
    try:
        yield compose
    finally:
        compose("down", "--volumes", "--timeout=0")
        service.terminate()
        service.wait(30)


def test_a_killed_worker_of_compose_starts_again_and_its_job_finishes(compose, folder):
    """Everything starts in its order, from an empty volume. podman without systemd runs no health checks: we ask."""
    with subprocess.Popen([*compose.words, "up", "--detach"], env=compose.environ) as starting:
        postgres = f"{compose.environ['COMPOSE_PROJECT_NAME']}_postgres_1"
        eventually(lambda: is_well(postgres), within_s=180, what="Postgres is well")
    assert starting.returncode == 0
    workers = compose("ps", "--quiet", "worker").split()
    assert len(workers) == 2
    reaper = compose("ps", "--quiet", "reaper")

    enqueue = ("outlive", "enqueue", "shop:app", "wait_for", '{"path": "/shared/go"}')
    (job,) = re.findall(r"[0-9a-f-]{36}", podman("exec", workers[0], *enqueue))
    begun = folder / "go.begun"
    eventually(lambda: begun.exists() and begun.read_text(), within_s=60, what="the job begins")
    killed = begun.read_text()
    first = inspect(killed, "Pid")
    os.kill(int(first), signal.SIGKILL)
    eventually(lambda: "attempt 1  lost" in show(reaper, job), within_s=60, what="the attempt is lost")
    (folder / "go").touch()
    eventually(lambda: " succeeded" in show(reaper, job), within_s=60, what="the job succeeds")
    eventually(lambda: inspect(killed, "Pid") not in {"0", first}, within_s=60, what="the worker starts again")
    eventually(lambda: is_well(killed), within_s=60, what="the worker is well")
    assert get(("127.0.0.1", compose.port), "/readyz")[0] == 200

    compose("stop")
    assert {inspect(worker, "ExitCode") for worker in workers} == {"0"}


def show(container: str, job: str) -> str:
    """What the command says of a job. It may fail for a moment: podman's names restart when a container does."""
    asked = ["podman", *ENGINE, "exec", container, "outlive", "show", job]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout


def is_well(container: str) -> bool:
    asked = ["podman", *ENGINE, "healthcheck", "run", container]
    return subprocess.run(asked, capture_output=True, timeout=60).returncode == 0


def inspect(container: str, what: str) -> str:
    return podman("inspect", "--format={{.State." + what + "}}", container)
