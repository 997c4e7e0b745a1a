"""What MkDocs does to our pages, so that the same files are right on the site and as plain pages of the repository.

- Each folder of docs/ is a section of the navigation, and a new page needs no entry anywhere.
- Pages at the root of the repository are pages of the site too. A link to another file outside docs/ becomes its text.
- A diagram in mermaid needs a script from elsewhere, so the site leaves it out; the page says the same in a table.
- Lists are written as GitHub reads them; Python-Markdown wants an empty line before, and four spaces below an item.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ADDED = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples/coins/README.md": "project/coins.md",
}
"""Pages outside docs/, and where they are on the site."""
FIRST = {"Home": "index.md", "Installation": "installation.md", "Tutorial": "tutorial.md"}
SECTIONS = {
    "How to": "how-to",
    "Explanation": "explanation",
    "Reference": "reference",
    "Decisions": "adr",
    "Reports": "reports",
    "Project": "project",
}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r" *(-|\d+\.) ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and make the navigation of what is there."""
    for path, uri in ADDED.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    pages = sorted(file.src_uri for file in files.documentation_pages())
    sections = {title: [uri for uri in pages if uri.startswith(f"{folder}/")] for title, folder in SECTIONS.items()}
    config.nav = [{title: uris} for title, uris in {**FIRST, **sections}.items()]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as MkDocs reads it."""
    uri = page.file.src_uri
    parts = FENCE.split(markdown)  # Every second part is a block of code.
    parts[1::2] = ["" if block.startswith("```mermaid") else block for block in parts[1::2]]
    parts[::2] = [separate_lists(LINK.sub(lambda found: link(uri, found), text)) for text in parts[::2]]
    return "".join(parts)


def link(uri: str, found: re.Match[str]) -> str:
    """A link of the page at `uri`, as it is on the site."""
    text, (target, _, anchor) = found[1], found[2].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return found[0]
    sources = {site: path for path, site in ADDED.items()}
    path = posixpath.normpath(posixpath.join(posixpath.dirname(sources.get(uri, f"docs/{uri}")), target))
    place = {**ADDED, "README.md": "index.md"}.get(path) or path.removeprefix("docs/")
    if (ROOT / path).is_dir() or (place == path and (ROOT / path).exists()):
        return text  # The site does not have it.
    return f"[{text}]({os.path.relpath(place, posixpath.dirname(uri) or '.')}{'#' if anchor else ''}{anchor})"


def separate_lists(text: str) -> str:
    lines: list[str] = []
    for line in text.split("\n"):
        is_item = ITEM.match(line) is not None
        before = lines[-1] if lines else ""
        if is_item and before and not before.startswith(" ") and not ITEM.match(before) and not in_list(lines):
            lines.append("")
        lines.append(re.sub(r"^ {2,3}(?=- )", "    ", line))
    return "\n".join(lines)


def in_list(lines: list[str]) -> bool:
    """Whether the last line continues an item, without an indent."""
    for line in reversed(lines):
        if not line:
            return False
        if ITEM.match(line):
            return True
    return False
