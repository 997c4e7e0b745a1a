"""Runs the commands of docs/how-to/check-by-hand.md, and compares the answers with those on the page."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.driving import pages
from tests.driving.pages import Shell, answered
from tests.waiting import eventually

KILL_TO_DEAD_S = 6.0
"""The page says two seconds, to people whose machine has nothing else to do."""


@pytest.fixture
def shell(tmp_path: Path, empty_database_url: str) -> Iterator[Shell]:
    with pages.shell(tmp_path, empty_database_url) as shell:
        yield shell


def test_the_checks_by_hand_answer_what_their_page_says(shell: Shell, empty_database_url: str, tmp_path: Path) -> None:
    blocks = pages.blocks_of("how-to/check-by-hand.md")
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
