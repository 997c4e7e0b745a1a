"""The pages name links, files, settings, modules and log lines that exist."""

import re

from outlive import config
from outlive.worker.fleet.registration import Identity
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.services import Services
from tests.tidy.reading import LAB, PAGES, ROOT, SOURCE, modules, none, read, shown, strings

LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:src|lab|tests|docs|examples)/[a-z0-9_./-]+)`")


def test_every_link_leads_somewhere():
    found = ((page, target) for page in PAGES for target in LINK.findall(read(page)))
    inside = ((page, target) for page, target in found if "://" not in target and not target.startswith("mailto:"))
    none(f"{shown(page)}: {one}" for page, one in inside if not (page.parent / one.partition("#")[0]).exists())


def test_every_file_that_is_named_exists():
    named = ((page, path) for page in PAGES for path in FILE.findall(read(page)))
    none(f"{shown(page)} names {path}" for page, path in named if not (ROOT / path).exists())


def test_every_setting_is_in_the_reference():
    page = read(ROOT / "docs" / "reference" / "settings.md")
    assert [key for key in (*config.KEYS, *config.ALIASES) if f"`{key}`" not in page] == []


def test_the_map_names_every_folder_and_only_files_that_exist():
    page = read(ROOT / "ARCHITECTURE.md")
    files = set(re.findall(r"`([a-z0-9_/]+\.(?:py|sql))`", page))
    assert [path for path in files if not any((root / path).exists() for root in (SOURCE, LAB, ROOT))] == []
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"`([a-z]+)/`", page.partition("## Folders")[2])) >= folders


def test_the_pages_say_how_many_connections_a_worker_has_at_most():
    me = Identity("crawler-1", 1, None)
    zygotes, alerts = Zygotes("no:app", me.id), Alerts()
    services = Services(
        me, config.Config(), "", zygotes, alerts, {},
        on_declared_dead=lambda: None, on_drain=lambda: None, on_reload=lambda: None,
    )  # fmt: skip
    most = config.Config().connections
    assert len(services.sessions) == most
    sizes = ROOT / "docs" / "how-to" / "size.md"
    assert f"{most} per worker at most" in read(sizes)
    for page in (sizes, ROOT / "docs" / "how-to" / "deploy.md", ROOT / "ARCHITECTURE.md"):
        assert f"up to {most} " in read(page), shown(page)


def test_every_log_line_on_the_page_of_recovery_is_in_the_code():
    page = read(ROOT / "docs" / "how-to" / "recover.md")
    lines = [line for block in re.findall(r"^```text\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()]
    assert len(lines) > 20
    texts = "\n".join(text for path in modules() for _, text in strings(path))
    clauses = (clause.strip(":; ") for line in lines for clause in re.split(r"<[^>]*>|[:;] ", line))
    none(f"no log line says {clause!r}" for clause in clauses if clause not in texts)
