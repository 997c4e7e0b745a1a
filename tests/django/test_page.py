"""Runs docs/how-to/django.md: the example project, its database, its worker and its site, driven through HTTP."""

import http.client
import itertools
import re
import textwrap
from pathlib import Path

import pytest

from tests.django.projects import PROJECT, environment
from tests.driving import pages
from tests.driving.workers import ROOT
from tests.waiting import eventually

PAGE = "how-to/django.md"
CURL = re.compile(r"curl -s (?:-d (\S+) )?http://127\.0\.0\.1:8000(\S+)\n")


def port_of(log: Path) -> int:
    """The port that the site has taken."""
    found = re.search(r"server at http://127\.0\.0\.1:(\d+)/", log.read_text()) if log.exists() else None
    return int(found[1]) if found else 0


def ask(port: int, form: str | None, path: str) -> str:
    """What `curl` does on the page."""
    site = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    site.request("POST" if form else "GET", path, form, kind if form else {})
    said = site.getresponse().read().decode()
    site.close()
    return said


@pytest.mark.long
def test_the_project_of_the_page_confirms_an_order_that_comes_through_http(empty_database_url, tmp_path):
    blocks = pages.blocks_of(PAGE)
    log, port, orders = tmp_path / "site.log", 0, 0
    with pages.shell(ROOT, None, **environment(empty_database_url), PYTHONUNBUFFERED="1") as shell:
        for (kind, text), (_, answer) in itertools.pairwise(blocks):
            if kind == "bash" and (asked := CURL.fullmatch(text)):
                port = port or eventually(lambda: port_of(log), within_s=60, what="the site starts")
                form, path = asked.groups()
                shown = "".join(answer.split())
                eventually(lambda: pages.shows(ask(port, form, path), answer), within_s=60, what=shown)  # noqa: B023
                orders += bool(form)
            elif kind == "bash":
                commands = text.replace("runserver 8000", f"runserver --noreload 0 > {log} 2>&1")
                said = shell.run(commands.replace("--slots 2", f"--slots 2 2> {tmp_path / 'worker.log'}"))
                assert "&" in text or pages.shows(said, answer), said
    assert orders == 1


def test_the_code_on_the_page_is_that_of_the_project():
    shown = [block.text for block in pages.blocks_of(PAGE) if block.kind == "python"]
    assert len(shown) == 7
    for text in shown:
        name, _, code = text.partition("\n")
        assert code in (PROJECT / name.removeprefix("# ")).read_text(), name
        compile(textwrap.dedent(code), name, "exec")
