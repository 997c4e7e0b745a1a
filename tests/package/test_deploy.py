"""The files in deploy/ name metrics, settings and commands that exist, and are in a form that their programs read.

tests/matrix/test_containers.py runs image and units. docs/how-to/deploy.md says what is not tried.
"""

import configparser
import json
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

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KNOWN = {metric.name: metric for metric in (*catalogue.OF_WORKER, *catalogue.OF_PROCESS, *catalogue.OF_DATABASE)}
SETTINGS = {f"OUTLIVE_{key.upper()}" for key in (*config.KEYS, "dashboard_listen", "dashboard_token")}
COMMANDS = {"worker", "reap", "migrate", "dashboard"}
STOPPED_S = config.Config().grace_s + 2 * GOODBYE_S
"""How long a worker may take to stop."""


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


def test_the_manifests_fit_together():
    found = manifests()
    secret = found["Secret", "outlive"]["stringData"]
    assert secret.keys() <= SETTINGS
    for (kind, name), manifest in found.items():
        if kind not in {"Deployment", "Job"}:
            continue
        template = manifest["spec"]["template"]
        if kind == "Deployment":
            assert manifest["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        (container,) = template["spec"]["containers"]
        assert container["args"][0] in COMMANDS
        assert {variable["name"] for variable in container.get("env", [])} <= SETTINGS
        assert [one["secretRef"]["name"] for one in container["envFrom"]] == ["outlive"]
        assert container["securityContext"]["runAsNonRoot"], name
        assert container["resources"]["limits"]["memory"], name
        ports = {port["name"] for port in container.get("ports", [])}
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            if kind == "Deployment":
                assert container[probe]["httpGet"]["path"] == path
                assert container[probe]["httpGet"]["port"] in ports
    worker = found["Deployment", "outlive-worker"]["spec"]["template"]
    assert worker["spec"]["terminationGracePeriodSeconds"] > STOPPED_S
    budget = found["PodDisruptionBudget", "outlive-worker"]["spec"]
    assert budget["selector"]["matchLabels"] == worker["metadata"]["labels"]
    assert budget["minAvailable"] < found["Deployment", "outlive-worker"]["spec"]["replicas"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_with_settings_that_exist(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert service["ExecStart"].split()[1] in COMMANDS
    assert set(re.findall(r"\bOUTLIVE_\w+", path.read_text())) <= SETTINGS
    if "worker" in path.name:
        assert (service["Type"], service["KillMode"], service["OOMPolicy"]) == ("notify", "mixed", "continue")
        assert float(service["TimeoutStopSec"]) > STOPPED_S


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for path in UNITS:
        text = path.read_text().replace("/srv/outlive/venv/bin/outlive", shutil.which("true") or "")
        (tmp_path / path.name.replace("@.", "@1.")).write_text(text)
    units = sorted(map(str, tmp_path.glob("*.service")))
    ran = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    complaints = [line for line in ran.stderr.splitlines() if "outlive" in line]
    assert (ran.returncode, complaints) == (0, []), ran.stderr
