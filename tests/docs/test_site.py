"""How pages become a site: links out of docs/, lists as GitHub reads them, and nothing fetched from elsewhere."""

import re

from tools.docs import checking, hooks
from tools.docs.__main__ import mkdocs


def test_what_a_browser_would_fetch_from_elsewhere_is_refused():
    page = """<link rel="stylesheet" href="https://example.org/a.css"><script src="//example.org/b.js"></script>
      <img src="c.png"><a href="https://example.org/">d</a>
      <style>e { background: url(http://example.org/e.png) }</style><link rel="canonical" href="https://example.org/">"""
    found = [one.removeprefix("a browser would fetch ") for one in checking.of_page(page)]
    assert found == ["https://example.org/a.css", "//example.org/b.js", "http://example.org/e.png"]
    assert checking.of_stylesheet("@import 'https://example.org/f.css'; g { src: url(g.woff2) }") != []
    assert checking.of_stylesheet("g { src: url(g.woff2) }") == []


def test_a_dead_link_and_a_dead_anchor_fail_the_build(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# One\n\n[two](two.md) [three](#three)\n")
    config = f"INHERIT: {hooks.ROOT}/mkdocs.yml\ndocs_dir: docs\nsite_dir: site\nhooks: []\n"
    (tmp_path / "mkdocs.yml").write_text(config)
    ran = mkdocs(tmp_path / "mkdocs.yml")
    assert ran.returncode != 0
    assert "'two.md'" in ran.stderr
    assert "'#three'" in ran.stderr


def test_every_folder_of_pages_is_a_section_of_the_site():
    folders = {path.parent.name for path in (hooks.ROOT / "docs").rglob("*.md")} - {"docs"}
    assert folders <= set(hooks.SECTIONS.values())
    root = {path.name for path in (hooks.ROOT / "docs").glob("*.md")}
    assert root == set(hooks.FIRST.values())
    assert not [path for path in hooks.ADDED if not re.fullmatch(r"[\w/.]+\.md", path)]
