"""The pages name links, files, settings, modules and log lines that exist."""

import ast
import re
from pathlib import Path

import pytest

from outlive import config
from outlive.worker.alerts import Alerts
from outlive.worker.identity import Identity
from outlive.worker.services import Services
from outlive.worker.zygotes import Zygotes
from tests.tidy.reading import EXAMPLES, LAB, ROOT, SOURCE, modules, shown, syntax

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(EXAMPLES.rglob("*.md"))]
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:src|lab|tests|docs|examples)/[a-z0-9_./-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = target.partition("#")[0]
        if path and "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / path).exists(), f"{shown(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_file_that_is_named_exists(page: Path) -> None:
    for path in FILE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{shown(page)} names {path}"


def test_every_setting_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert [key for key in (*config.KEYS, *config.ALIASES) if f"`{key}`" not in page] == []


def test_the_map_names_every_folder_and_only_files_that_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`([a-z0-9_/]+\.(?:py|sql))`", page))
    assert [path for path in files if not any((root / path).exists() for root in (SOURCE, LAB, ROOT))] == []
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"`([a-z]+)/`", page.partition("## Folders")[2])) >= folders


def test_the_pages_say_how_many_connections_a_worker_has_at_most() -> None:
    me = Identity("crawler-1", 1, None)
    zygotes, alerts = Zygotes("no:app", me.id, me.slots), Alerts()
    services = Services(
        me, config.Config(), "", zygotes, alerts, {}, on_declared_dead=lambda: None, on_drain=lambda: None
    )
    most = len(services.sessions) + 1  # The sessions, and the connection that shows its life.
    always, scraped = 3, 1
    sizes = ROOT / "docs" / "how-to" / "size.md"
    assert f"{most} per worker at most" in sizes.read_text(encoding="utf-8")
    for page in (sizes, ROOT / "docs" / "how-to" / "deploy.md", ROOT / "ARCHITECTURE.md"):
        assert f"up to {most - always - scraped} more" in page.read_text(encoding="utf-8"), shown(page)


def test_every_log_line_on_the_page_of_recovery_is_in_the_code() -> None:
    page = (ROOT / "docs" / "how-to" / "recover.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()]
    assert len(lines) > 20
    constants = [node for path in modules() for node in ast.walk(syntax(path)) if isinstance(node, ast.Constant)]
    texts = "\n".join(node.value for node in constants if isinstance(node.value, str))
    for line in lines:
        for clause in re.split(r"<[^>]*>|[:;] ", line):
            assert clause.strip(":; ") in texts, f"no log line says {clause!r}"
