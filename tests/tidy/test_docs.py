"""What people read points to what exists."""

import re
from pathlib import Path

import pytest

from outlive import config
from tests.tidy.reading import EXAMPLES, ROOT, shown

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(EXAMPLES.rglob("*.md"))]
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:src|tests|docs|examples)/[a-z0-9_./-]+)`")


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
