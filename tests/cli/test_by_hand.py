"""Runs the commands of docs/how-to/check-by-hand.md, and compares the answers with those on the page."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.driving.workers import ROOT
from tests.waiting import eventually

PAGE = ROOT / "docs" / "how-to" / "check-by-hand.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DONE = "-- the block is done --"
KILL_TO_DEAD_S = 6.0
"""The page says two seconds, to people whose machine has nothing else to do."""


class Block(NamedTuple):
    kind: str
    text: str


class Shell:
    """One shell for all blocks of the page. It stops at the first command that fails."""

    def __init__(self, folder: Path, url: str) -> None:
        words = {"OUTLIVE_DATABASE_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env={**os.environ, **words},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{text}\necho '{DONE}'\n")
        self.process.stdin.flush()
        said = []
        for line in self.process.stdout:
            if line == f"{DONE}\n":
                return
            said.append(line)
        raise AssertionError(f"{text}\nfailed: {''.join(said)}")


@pytest.fixture
def shell(tmp_path: Path, empty_database_url: str) -> Iterator[Shell]:
    shell = Shell(tmp_path, empty_database_url)
    yield shell
    os.killpg(shell.process.pid, signal.SIGTERM)
    shell.process.communicate(timeout=60)


def answered(connection: psycopg.Connection[tuple[object, ...]], query: str) -> str:
    rows = connection.execute(query.encode()).fetchall()
    return "".join(" | ".join(map(str, row)) + "\n" for row in rows)


def test_the_checks_by_hand_answer_what_their_page_says(shell: Shell, empty_database_url: str, tmp_path: Path) -> None:
    blocks = [Block(*found) for found in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    assert {kind for kind, _ in blocks} == {"python", "sh", "sql", "text"}
    killed_at = dead_after_s = None
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        for n, (kind, text) in enumerate(blocks):
            match kind:
                case "python":
                    (tmp_path / "checks.py").write_text(text)
                case "sh":
                    if "kill -9" in text:
                        killed_at = time.monotonic()
                    shell.run(text)
                case "sql":
                    expected = re.escape(blocks[n + 1].text).replace("…", r"\d+")
                    once = text.startswith("select count(outlive.enqueue")
                    if once:
                        assert re.fullmatch(expected, answered(connection, text))
                    else:
                        eventually(
                            lambda: re.fullmatch(expected, answered(connection, text)),  # noqa: B023
                            within_s=30,
                            what=f"{text} answers {blocks[n + 1].text}",
                        )
                    if "| dead |" in blocks[n + 1].text:
                        assert killed_at
                        dead_after_s = time.monotonic() - killed_at
                case _:
                    assert blocks[n - 1].kind == "sql"
    assert dead_after_s is not None
    assert dead_after_s < KILL_TO_DEAD_S
