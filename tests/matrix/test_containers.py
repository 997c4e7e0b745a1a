"""The shipped image and the shipped units, run for real: podman runs what buildah has built from deploy/."""

import importlib.util
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from outlive import State, config
from outlive.states import Outcome
from tests.driving.jobs import finished, outcomes
from tests.matrix.containers import ENGINE, LIMITS, ROOT, needs, podman
from tests.matrix.servers import Server
from tests.waiting import eventually

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")
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


@app.task
def write_to(place: str) -> str:
    try:
        Path(place, "something").write_text("written")
    except OSError as error:
        return error.strerror
    return "written"


@app.task(memory="100MB", backoff="1s")
def eat_too_much() -> int:
    return len(bytearray(10**9))


@app.task(backoff="1s")
def eat_without_limit() -> int:
    return len(b"1" * 10**9)
"""

pytestmark = needs()


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
        subprocess.run(
            ["podman", *ENGINE, "rm", "--force", "--volumes", "--time=0", name], capture_output=True, timeout=60
        )


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


def test_the_image_has_the_packages_of_the_lock_file(image):
    found = dict(
        line.split("==")
        for line in podman(
            "run", "--rm", *LIMITS, "--entrypoint=pip", image, "freeze", "--exclude=outlive"
        ).splitlines()
    )
    locked = {one["name"]: one["version"] for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert {"msgspec", "psycopg", "starlette", "prometheus-client"} <= {
        name.lower().replace("_", "-") for name in found
    }
    assert {name: version for name, version in found.items() if locked[name.lower().replace("_", "-")] != version} == {}


def test_a_worker_of_kubernetes_runs_jobs_with_few_rights_and_a_root_that_is_read_only(start, shop, folder):
    """The rights and the volumes of the manifest, as podman's words. All may write to a volume of Kubernetes."""
    manifest, *_ = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "worker.yaml").read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    rights = container["securityContext"]
    assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
    words = ["--read-only", "--read-only-tmpfs=false", "--security-opt=no-new-privileges"]
    words += [f"--cap-drop={name}" for name in rights["capabilities"]["drop"]]
    volumes = [mount["mountPath"] for mount in container["volumeMounts"]]
    for path in volumes:
        (place := folder / path.replace("/", "-")).mkdir()
        place.chmod(0o777)
        words.append(f"--volume={place}:{path}")
    start(*words)
    jobs = {path: shop.write_to.enqueue(path) for path in (*volumes, "/app", "/var/tmp")}
    written = {path: job.result(timeout=60) for path, job in jobs.items()}
    assert written == dict.fromkeys(volumes, "written") | dict.fromkeys(("/app", "/var/tmp"), "Read-only file system")


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
