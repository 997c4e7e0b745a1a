"""The models in proof/: every rule has a witness that it is needed, and the page says what each module promises."""

import re

from tests.tidy.reading import ROOT, none, read
from tools import proof

MODULES = {path.stem: read(path) for path in sorted(proof.MODELS.glob("*.tla"))}


def test_every_rule_of_a_model_has_a_witness():
    rules = {(name, rule) for name, text in MODULES.items() for rule in re.findall(r'Rule\("([^"]+)"\)', text)}
    assert rules == {(check.module, check.off) for check in proof.read() if check.off}


def test_every_promise_of_a_model_is_kept_and_named():
    page = read(ROOT / "docs" / "explanation" / "model.md")
    checks = list(proof.read())
    assert {check.module for check in checks} == set(MODULES)
    for check in checks:
        promises = {*check.invariants.split(), *check.properties.split(), *check.breaks.split()}
        none(f"{check.module} has no {one}" for one in promises if f"\n{one} ==" not in MODULES[check.module])
    none(f"{name} is not on the page" for name in MODULES if f"### {name}" not in page)
