"""The code on every page is run by a test or marked as not run, and names commands and options that exist."""

import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from outlive.cli import load
from tests.driving.pages import BLOCK
from tests.tidy.reading import EXAMPLES, ROOT, modules, read, shown
from tools.docs import generating

GENERATED = {path for path in generating.pages() if path.parent == generating.REFERENCE}
PAGES = [
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),
    *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reports" and path not in GENERATED),
    *EXAMPLES.rglob("*.md"),
]
RUN = {"bash", "sh", "sql", "python", "js", "toml"}
FOR_READERS = {"", "text", "yaml", "dockerfile"}
TESTS = [text for path in modules(ROOT / "tests") if "import pages" in (text := read(path))]
"""The tests that run pages."""

COMMANDS: Any = typer.main.get_command(load())
OF_RUN = {"test", "check", "docs", "audit", "setup", "bench", "gameday", "deaths", "pairs", "proof"}
"""The words of `./run` that are not commands of outlive."""
OF_THE_LAB = {"bench", "gameday", "deaths"}
"""Pages about commands of the lab, with its options."""
OTHERS = {
    "--shm-size",
    "--backend",
    "--plan",
    "--exclude-queues",
    "--noreload",
    "--timeout-graceful-shutdown",
    "--outlive-database-url",
    "--max-tasks-per-child",
}
"""Options of Docker, of `manage.py`, of the plugin for pytest, of uvicorn, and of Celery."""


def test_a_test_runs_each_page_unless_all_its_code_is_for_readers():
    for page in PAGES:
        kinds = {kind for _, kind, _ in BLOCK.findall(read(page))}
        assert kinds <= RUN | FOR_READERS, shown(page)
        name = f'"{os.path.relpath(page, ROOT / "docs")}"'
        run = not kinds & RUN or any(name in test for test in TESTS)
        assert run, f"no test runs {shown(page)}: run its code, or give it no language"


def test_every_command_and_option_on_a_page_exists():
    for page in PAGES:
        for code in code_of(read(page)):
            if command := re.search(r"(?:^|(?<!install)(?<!from)[ (])(\./run|outlive) ([a-z].*)", code):
                assert unknown(command[2], own=OF_RUN if command[1] == "./run" else set()) == [], (page, code)
            elif code.startswith("--") and page.stem not in OF_THE_LAB:
                assert code.split()[0].split("=")[0] in {*options(COMMANDS), *OTHERS}, (page, code)


def code_of(text: str) -> Iterator[str]:
    """Each line of the blocks, and each piece of code between the words."""
    for _, kind, block in BLOCK.findall(text):
        if kind not in ("text", "sql"):
            yield from block.splitlines()
    for inline in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        yield " ".join(inline.split())


def unknown(line: str, *, own: set[str]) -> list[str]:
    """The words of a command line that are neither commands nor options of outlive."""
    first, *words = words_of(line)
    if first in own:
        return []
    command = COMMANDS.commands.get(first)
    if command is None:
        return [first]
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return [word for word in words if word.startswith("--") and word.split("=")[0] not in options(command)]


def words_of(line: str) -> list[str]:
    """The words of the command, up to a comment or what a shell does with its output."""
    plain = re.split(r" [|&;>]| 2>|\)", line)[0]
    try:
        return shlex.split(plain, comments=True)
    except ValueError:  # A quote that the next line closes.
        return plain.split()


@cache
def options(command: Any) -> set[str]:
    """The options of a command and of those below it."""
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return own.union({"--help"}, *(options(below) for below in getattr(command, "commands", {}).values()))
