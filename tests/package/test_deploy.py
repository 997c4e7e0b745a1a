"""The files in deploy/ name metrics, settings and commands that exist, and are in a form that their programs read.

tests/matrix/test_containers.py runs image and units, and test_compose.py beside it all of compose.
docs/how-to/deploy.md says what is not tried.
"""

import configparser
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlive import config
from outlive.metrics import catalogue
from outlive.worker.ending.stopping import GOODBYE_S
from tests.driving.making import WORKER

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SCALE = DEPLOY / "systemd" / "outlive-scale"
KNOWN = {metric.name: metric for metric in (*catalogue.OF_WORKER, *catalogue.OF_PROCESS, *catalogue.OF_DATABASE)}
SETTINGS = {f"OUTLIVE_{key.upper()}" for key in (*config.KEYS, "dashboard_listen", "dashboard_token")}
COMMANDS = {"worker", "reap", "migrate", "dashboard"}
STOPPED_S = config.Config().grace_s + 2 * GOODBYE_S
"""How long a worker may take to stop."""


OTHERS = {"PodMonitor", "ScaledObject", "TriggerAuthentication"}
"""Kinds that are not Kubernetes' own."""
TRIGGER = {"host", "port", "userName", "dbName", "sslmode", "query", "targetQueryValue"}
"""The fields that the documentation of KEDA's scaler for PostgreSQL asks for, beside the password."""


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


ALERTS = [rule for group in documents(DEPLOY / "prometheus" / "alerts.yaml")[0]["groups"] for rule in group["rules"]]
BOARD = json.loads((DEPLOY / "grafana" / "outlive.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Every query of the board and of the alerts, with the title of what it is for."""
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in BOARD["templating"]["list"][1:]:
        yield variable["name"], variable["definition"]
    for annotation in BOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def test_a_query_names_metrics_and_labels_that_exist():
    for title, query in expressions():
        names = re.findall(r"\b((?:outlive|process)_\w+)", query)
        assert names, title
        of = [KNOWN[name] for name in map(without_suffix, names) if name.startswith("outlive_")]
        labels = {"instance", "le", catalogue.DATABASE, *(label for metric in of for label in metric.labels)}
        matched = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query)
        groups = re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
        assert {*matched, *(name.strip() for group in groups for name in group.split(","))} <= labels, title
        for metric, label, value in selected(query):
            assert not metric.always or value in metric.always, f"{title}: {label} is never {value}"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_each_alert_fires_for_the_database_in_trouble_and_for_no_other():
    tests = DEPLOY / "prometheus" / "alerts_test.yaml"
    ran = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tried = set(re.findall(r'alertname="(\w+)",alertstate="firing",', tests.read_text()))
    assert tried == {rule["alert"] for rule in ALERTS}


def test_no_alert_mixes_databases():
    for rule in ALERTS:
        assert not re.search(r"\b(?:max|min|sum)\b(?! by \(database\b)", rule["expr"].replace("max_over", "")), rule[
            "alert"
        ]


def without_suffix(name: str) -> str:
    """The metric that a sample belongs to."""
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    return plain if KNOWN.get(plain, catalogue.SLOTS).kind == "histogram" else name


def selected(query: str) -> Iterator[tuple[catalogue.Metric, str, str]]:
    for name, inside in re.findall(r"(outlive_\w+)\{([^}]*)\}", query):
        for label, value in re.findall(r'(\w+)="([^"]*)"', inside):
            yield KNOWN[without_suffix(name)], label, value


def test_the_board_shows_every_metric_but_a_few():
    shown = {without_suffix(name) for _, query in expressions() for name in re.findall(r"outlive_\w+", query)}
    assert KNOWN.keys() - shown == {"outlive_worker_info", "outlive_quarantined_total"}


def test_compose_runs_two_workers_beside_what_they_need():
    (compose,) = documents(DEPLOY / "compose.yaml")
    assert compose.keys() == {"x-outlive", "services", "volumes"}  # docker-compose 1.29 refuses `name`.
    services = compose["services"]
    assert services.keys() == {"postgres", "migrate", "worker", "reaper", "dashboard"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert float(services["worker"]["stop_grace_period"].removesuffix("s")) > STOPPED_S
    for name in services.keys() - {"postgres"}:
        service = services[name]
        assert service["command"][0] in COMMANDS
        assert service["environment"].keys() <= SETTINGS
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        assert all(other in services for other in service["depends_on"])
    for mount in services["worker"]["volumes"] + services["postgres"]["volumes"]:
        source = mount.partition(":")[0]
        assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]


def test_the_image_runs_as_an_ordinary_user_and_gets_signals_itself():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    steps: dict[str, list[str]] = {}
    for word, rest in lines:
        steps.setdefault(word, []).append(rest)
    assert steps["USER"] == ["10001"]
    assert steps["ENTRYPOINT"] == ['["outlive"]']  # Without a shell, which would not pass signals on.
    assert set(re.findall(r"\bOUTLIVE_\w+", text)) <= SETTINGS
    for copied in steps["COPY"]:
        if not copied.startswith("--from"):
            assert all((DEPLOY.parent / name).exists() for name in copied.split()[:-1]), copied


def manifests() -> dict[tuple[str, str], Any]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    found = [one for path in files for one in documents(path)]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pods() -> dict[str, Any]:
    """The pods that Deployments and Jobs make, by the names of these."""
    return {name: one["spec"]["template"] for (kind, name), one in manifests().items() if kind in {"Deployment", "Job"}}


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_the_manifests(version):
    """By its published schemas, with no field that they don't know. Theirs have neither KEDA nor Prometheus."""
    schemas = pytest.importorskip("kubernetes_validate", reason="the group manifests is not installed")
    known = [one for (kind, _), one in manifests().items() if kind not in OTHERS]
    assert len(known) == len(manifests()) - len(OTHERS)
    for manifest in known:
        schemas.validate(manifest, version, strict=True)


def test_a_pod_has_few_rights_and_writes_only_to_its_volumes():
    for name, pod in pods().items():
        (container,) = pod["spec"]["containers"]
        rights = container["securityContext"]
        assert (rights["runAsNonRoot"], rights["readOnlyRootFilesystem"]) == (True, True), name
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]}), name
        assert pod["spec"]["automountServiceAccountToken"] is False, name
        assert container["resources"]["limits"]["memory"], name
        mounted = [mount["name"] for mount in container.get("volumeMounts", [])]
        assert mounted == [volume["name"] for volume in pod["spec"].get("volumes", [])]


def test_a_pod_runs_a_command_with_settings_that_exist():
    secrets = {name: one["stringData"].keys() for (kind, name), one in manifests().items() if kind == "Secret"}
    for name, pod in pods().items():
        (container,) = pod["spec"]["containers"]
        assert container["args"][0] in COMMANDS
        given = [key for one in container["envFrom"] for key in secrets[one["secretRef"]["name"]]]
        given += [variable["name"] for variable in container.get("env", [])]
        assert set(given) <= SETTINGS
        assert ("OUTLIVE_DASHBOARD_TOKEN" in given) == (name == "outlive-dashboard")


def test_a_probe_asks_a_port_of_its_pod():
    for (kind, _), manifest in manifests().items():
        if kind == "Deployment":
            pod = manifest["spec"]["template"]
            assert manifest["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
            (container,) = pod["spec"]["containers"]
            for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
                asked = container[probe]["httpGet"]
                assert asked == {"path": path, "port": container["ports"][0]["name"]}


def test_all_that_concerns_the_workers_fits_together():
    found = manifests()
    deployment = found["Deployment", "outlive-worker"]["spec"]
    labels, worker = deployment["template"]["metadata"]["labels"], deployment["template"]["spec"]
    assert worker["terminationGracePeriodSeconds"] > (config.Config().timeout_s or 0) + STOPPED_S
    (container,) = worker["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"][-1] == 'outlive drain "$OUTLIVE_NAME"'
    slots = container["args"][container["args"].index("--slots") + 1]
    assert [one["labelSelector"]["matchLabels"] for one in worker["topologySpreadConstraints"]] == [labels]
    budget = found["PodDisruptionBudget", "outlive-worker"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["minAvailable"] < deployment["replicas"]
    scaling = found["HorizontalPodAutoscaler", "outlive-worker"]["spec"]
    assert ("Deployment", scaling["scaleTargetRef"]["name"]) in found
    assert budget["minAvailable"] < scaling["minReplicas"]
    (external,) = (one["external"] for one in scaling["metrics"])
    metric = external["metric"]
    assert metric["selector"]["matchLabels"].keys() <= set(KNOWN[metric["name"]].labels)
    assert external["target"] == {"type": "AverageValue", "averageValue": slots}
    keda = found["ScaledObject", "outlive-worker"]["spec"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (scaling["minReplicas"], scaling["maxReplicas"])
    assert keda["advanced"]["horizontalPodAutoscalerConfig"] == {"behavior": scaling["behavior"]}
    assert keda["triggers"][0]["metadata"]["targetQueryValue"] == slots


def test_keda_finds_its_target_its_fields_and_its_password():
    """By the fields that its documentation names: its schemas are in no package."""
    found = manifests()
    keda = found["ScaledObject", "outlive-worker"]
    assert keda["apiVersion"] == "keda.sh/v1alpha1"
    assert keda["spec"].keys() <= {
        *("scaleTargetRef", "pollingInterval", "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers")
    }
    assert ("Deployment", keda["spec"]["scaleTargetRef"]["name"]) in found
    assert keda["spec"]["fallback"].keys() == {"failureThreshold", "replicas", "behavior"}
    (trigger,) = keda["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("postgresql", "AverageValue")
    assert trigger["metadata"].keys() == TRIGGER
    assert {type(value) for value in trigger["metadata"].values()} == {str}
    (secret,) = found["TriggerAuthentication", trigger["authenticationRef"]["name"]]["spec"]["secretTargetRef"]
    assert secret["parameter"] == "password"
    assert secret["key"] in found["Secret", secret["name"]]["stringData"]


def test_what_keda_asks_is_answered_to_a_viewer_with_a_whole_number(queue):
    (trigger,) = manifests()["ScaledObject", "outlive-worker"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    queue.execute("set role outlive_viewer")
    assert queue.value(query) == 0
    queue.execute("reset role")
    queue.make_many(20)
    queue.make("draw", queue="other")
    queue.execute("set role outlive_viewer")
    assert queue.value(query) == 20


@pytest.mark.skipif(not shutil.which("psql"), reason="psql is not installed")
@pytest.mark.parametrize(("jobs", "started"), [(0, [1]), (9, [1, 2]), (500, [1, 2, 3, 4])])
def test_a_machine_has_as_many_workers_as_its_jobs_want(queue, database_url, tmp_path, jobs, started):
    told = tmp_path / "told"
    for name in ("systemctl", "outlive"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {told}\n')
        (tmp_path / name).chmod(0o755)
    queue.register_worker(WORKER)
    if jobs:
        queue.make_many(jobs)
    queue.claim(limit=3)  # Those that run want their slots too.
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OUTLIVE_DATABASE_URL": database_url}
    subprocess.run([SCALE, "4", "8"], env=environ, check=True, timeout=60)
    lines = [line for line in told.read_text().splitlines() if "is-active" not in line]
    drained = [f"outlive drain --no-wait {os.uname().nodename}-{n}" for n in range(1, 5) if n not in started]
    assert lines == [f"systemctl start --no-block outlive-worker@{n}" for n in started] + drained


def test_what_is_scraped_and_served_is_a_port_of_its_pods():
    found = manifests()
    monitor = found["PodMonitor", "outlive"]["spec"]
    (kinds,) = (one["values"] for one in monitor["selector"]["matchExpressions"])
    (endpoint,) = monitor["podMetricsEndpoints"]
    service = found["Service", "outlive-dashboard"]["spec"]
    wanted = {f"outlive-{kind}": endpoint["port"] for kind in kinds}
    wanted["outlive-dashboard"] = service["ports"][0]["targetPort"]
    for name, port in wanted.items():
        (container,) = pods()[name]["spec"]["containers"]
        assert port in {one["name"] for one in container["ports"]}, name
        assert monitor["selector"]["matchLabels"].items() <= pods()[name]["metadata"]["labels"].items()
    assert service["selector"] == pods()["outlive-dashboard"]["metadata"]["labels"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_with_settings_that_exist(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    service = unit["Service"]
    program, word, *_ = service["ExecStart"].split()
    assert word in COMMANDS if program.endswith("/outlive") else program.endswith(f"/{SCALE.name}")
    assert set(re.findall(r"\bOUTLIVE_\w+", path.read_text())) <= SETTINGS
    if "worker" in path.name:
        assert (service["Type"], service["KillMode"], service["OOMPolicy"]) == ("notify", "mixed", "continue")
        assert float(service["TimeoutStopSec"]) > STOPPED_S


def test_the_commands_of_the_page_install_each_unit_with_what_it_starts(tmp_path):
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()
    units, programs = tmp_path / "etc/systemd/system", tmp_path / "srv/outlive"
    units.mkdir(parents=True)
    programs.mkdir(parents=True)
    for line in re.findall(r"^ *((?:cp|install) .*deploy/systemd/.*)$", page, re.MULTILINE):
        subprocess.run(
            ["bash", "-c", re.sub(r" (/(?:etc|srv)/)", rf" {tmp_path}\1", line)], cwd=DEPLOY.parent, check=True
        )
        for unit in units.glob("*.service"):
            if own := re.search(r"^ExecStart=/(srv/outlive/outlive-\S+)", unit.read_text(), re.MULTILINE):
                assert os.access(tmp_path / own[1], os.X_OK), f"{line} installs {unit.name} without its program"
    installed = {path.name for path in (*units.iterdir(), *programs.iterdir())}
    assert installed == {path.name for path in (DEPLOY / "systemd").iterdir()}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for path in (*UNITS, DEPLOY / "systemd" / "outlive-scale.timer"):
        program = re.compile(r"/srv/outlive/(venv/bin/outlive|outlive-scale)")
        text = program.sub(shutil.which("true") or "", path.read_text())
        (tmp_path / path.name.replace("@.", "@1.")).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    ran = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    complaints = [line for line in ran.stderr.splitlines() if "outlive" in line]
    assert (ran.returncode, complaints) == (0, []), ran.stderr
