"""The shipped image and the shipped units, run for real: podman runs what buildah has built from deploy/.

The base image is made of Debian's packages, because no registry is needed for that.
"""

import importlib.util
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from outlive import State, config
from outlive.states import Outcome
from tests.driving.jobs import finished, outcomes
from tests.matrix.servers import Server
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
BASE, IMAGE = "localhost/outlive-test-base", "localhost/outlive-test"
PACKAGES = "python3,python3-venv,ca-certificates,systemd,systemd-sysv"
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
ENGINE = ("--cgroup-manager=cgroupfs", "--runtime=runc")  # crun refuses machines with both versions of cgroups.
LIMITS = (f"--ulimit=nofile={FILES}:{FILES}", "--ulimit=nproc=10000:10000")
Start = Callable[..., str]
SHOP = """
import time
from pathlib import Path

import outlive

app = outlive.App()


@app.task
def wait_for(path: str) -> str:
    Path(path + ".begun").touch()
    while not Path(path).exists():
        time.sleep(0.05)
    return "seen"


@app.task(memory="100MB", backoff="1s")
def eat_too_much() -> int:
    return len(bytearray(10**9))


@app.task(backoff="1s")
def eat_without_limit() -> int:
    return len(b"1" * 10**9)
"""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, ("podman", "buildah", "mmdebstrap", "runc"))),
        reason="needs root, podman, buildah, mmdebstrap and runc",
    ),
]


def run(*words: object, within_s: float = 60) -> str:
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()


def podman(*words: object, within_s: float = 60) -> str:
    return run("podman", *ENGINE, *words, within_s=within_s)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What deploy/Dockerfile makes of this checkout. The base is made once, and kept."""
    if subprocess.run(["podman", "image", "exists", BASE]).returncode != 0:
        tree = tmp_path_factory.mktemp("base") / "tree.tar"
        mirror = "deb http://deb.debian.org/debian bookworm main"
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", tree, mirror, within_s=900)
        podman("import", tree, BASE, within_s=300)
    run(
        "buildah", *ENGINE, "bud", "--layers", "--network=host", *LIMITS, "--format=docker",
        "--volume=/etc/ssl/certs:/etc/ssl/certs:ro",
        f"--build-arg=BASE={BASE}", "-f", ROOT / "deploy" / "Dockerfile", "-t", IMAGE, ROOT, within_s=900,
    )  # fmt: skip
    return IMAGE


@pytest.fixture
def folder(base: Path, server: Server) -> Path:
    """What the containers share with the test: the app, and files that jobs wait for."""
    folder = base / f"app-{uuid4().hex[:8]}"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "shop.py").write_text(SHOP)
    return folder


@pytest.fixture
def start(image: str, server: Server, folder: Path) -> Iterator[Start]:
    """Starts containers, and removes them after the test."""
    names: list[str] = []

    def begin(*words: str, command: tuple[str, ...] = ("worker", "shop:app", "--slots", "2")) -> str:
        names.append(name := f"outlive-test-{uuid4().hex[:8]}")
        shared = [f"--volume={path}:{path}" for path in (server.folder, folder)]
        setting = f"--env=OUTLIVE_DATABASE_URL={server.url}"
        app = (f"--env=PYTHONPATH={folder}", "--network=none")
        podman("run", "--detach", f"--name={name}", *LIMITS, *shared, setting, *app, *words, image, *command)
        return name

    yield begin
    for name in names:
        subprocess.run(["podman", *ENGINE, "rm", "--force", "--time=0", name], capture_output=True, timeout=60)


@pytest.fixture
def shop(server: Server, folder: Path) -> Any:
    """The app that runs in the containers."""
    spec = importlib.util.spec_from_file_location("shop", folder / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    shop.app.configure(config.load(flags={"database_url": server.url}))
    return shop


def begun(path: Path) -> None:
    eventually(Path(f"{path}.begun").exists, within_s=60, what="the job begins")


def inspect(name: str, what: str) -> str:
    return podman("inspect", "--format={{.State." + what + "}}", name)


# The image


def test_a_container_that_is_stopped_lets_its_job_finish(start, shop, folder):
    worker = start()
    job = shop.wait_for.enqueue(str(folder / "go"))
    begun(folder / "go")
    podman("healthcheck", "run", worker)
    stopping = subprocess.Popen(["podman", *ENGINE, "stop", "--time=40", worker], stdout=subprocess.DEVNULL)
    eventually(lambda: "stops: 1 job is running" in logs(worker), within_s=20)
    (folder / "go").touch()
    assert stopping.wait(60) == 0
    assert (inspect(worker, "ExitCode"), job.status()) == ("0", State.SUCCEEDED)


def test_a_container_that_is_killed_costs_its_job_only_time(start, shop, folder, queue):
    first = start()
    job = shop.wait_for.enqueue(str(folder / "go"))
    begun(folder / "go")
    start()
    podman("kill", first)
    (folder / "go").touch()
    assert job.result(timeout=60) == "seen"
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]


@pytest.mark.parametrize(
    ("task", "outcome"), [("eat_too_much", Outcome.OUT_OF_MEMORY), ("eat_without_limit", Outcome.CRASHED)]
)
def test_a_job_that_eats_its_containers_memory_dies_and_the_worker_lives(start, shop, folder, queue, task, outcome):
    """Of a kill by the kernel in a container without groups of its own, only the number is known, not whom it hit."""
    worker = start("--memory=300m", "--memory-swap=300m")
    job = getattr(shop, task).enqueue()
    finished(job, State.QUARANTINED, within_s=60)
    assert outcomes(queue, job) == [outcome] * 3
    (folder / "go").touch()
    assert shop.wait_for.enqueue(str(folder / "go")).result(timeout=30) == "seen"
    assert inspect(worker, "Running") == "true"


# The units


def test_the_units_start_restart_and_stop_as_systemd_asks(start, shop, server, folder, queue):
    """The dashboard and the reaper too. A worker that is killed starts again, and its job finishes."""
    units = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
    mounts = [f"--volume={unit}:/etc/systemd/system/{unit.name}:ro" for unit in units]
    mounts += [f"--volume={server.folder}:/srv/postgres", f"--volume={folder}:/var/cache/outlive/shared"]
    mounts += [
        f"--volume={folder}/shop.py:/srv/outlive/shop.py:ro",
        f"--volume={folder}/env:/etc/outlive/outlive.env:ro",
    ]
    url = make_conninfo(server.url, host="/srv/postgres")  # The units have a /var/tmp of their own.
    (folder / "env").write_text(f'OUTLIVE_DATABASE_URL="{url}"\nOUTLIVE_DASHBOARD_TOKEN={uuid4()}\n')
    machine = start("--systemd=always", "--privileged", "--user=root", "--entrypoint=/sbin/init", *mounts, command=())

    def inside(*words: str) -> str:
        return podman("exec", machine, *words, within_s=90)

    eventually(lambda: has_started(machine), within_s=60, what="systemd has started everything")
    inside("ln", "-s", "/opt/outlive", "/srv/outlive/venv")
    names = ["outlive-worker@1", "outlive-reaper", "outlive-dashboard"]
    inside("systemctl", "start", *names)
    assert inside("systemctl", "is-active", *names).split() == ["active"] * 3
    job = shop.wait_for.enqueue("/var/cache/outlive/shared/go")
    begun(folder / "go")
    inside("systemctl", "kill", "--signal=SIGKILL", "--kill-whom=main", "outlive-worker@1")
    (folder / "go").touch()
    assert job.result(timeout=60) == "seen"
    assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]
    inside("systemctl", "stop", *names)
    assert inside("systemctl", "show", "--property=Result", "--value", *names).split() == ["success"] * 3
    assert inside("journalctl", "--unit=outlive-worker@1", "--no-pager").count(" started: ") == 2


def has_started(machine: str) -> bool:
    asked = ["podman", *ENGINE, "exec", machine, "systemctl", "is-system-running"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60).stdout.strip() == "running"


def logs(name: str) -> str:
    done = subprocess.run(["podman", *ENGINE, "logs", name], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr
