"""The help of every command, in 80 columns; and what the shell completes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from outlive.cli import job_filter, load

WIDTH = 80


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


ALL = list(commands(get_command(load())))


def help_of(*words: str) -> str:
    ran = CliRunner(env={"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH)}).invoke(load(words), [*words, "--help"])
    assert ran.exit_code == 0
    return ran.stdout


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_what_is_listed_can_be_watched(words):
    command: Any = get_command(load())
    for word in words:
        command = command.commands[word]
    names = {option for parameter in command.params for option in parameter.opts}
    assert "--watch" in names or not {"--json", "--limit"} <= names


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_help_is_whole_in_80_columns_and_has_an_example(words: tuple[str, ...]) -> None:
    text = help_of(*words)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "…" not in text
    flat = re.sub(r"[│\s]+", " ", text)
    command = get_command(load())
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    for parameter in (one for one in command.params if not getattr(one, "hidden", False)):
        for word in (getattr(parameter, "help", None) or "").split():
            assert word in flat, f"{word!r} is cut in the help of {parameter.name}"
    if words:
        assert f"Example: outlive {' '.join(words)}" in flat


def completed(line: str, **environ: str) -> list[str]:
    words = line.split(" ")
    env = {"_OUTLIVE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), **environ}
    ran = subprocess.run(
        [sys.executable, "-c", "from outlive.cli import main; main()"],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


def test_the_shell_completes_commands_states_and_names(database_url, queue):
    queue.make(queue="slow")
    queue.make(queue="sleepy")
    assert completed("outlive wor") == ["worker", "workers"]
    assert completed("outlive jobs --state fa") == ["failed"]
    assert completed("outlive jobs --queue sl", OUTLIVE_DATABASE_URL=database_url) == ["sleepy", "slow"]


def test_a_database_that_does_not_answer_completes_nothing(monkeypatch):
    monkeypatch.setenv("OUTLIVE_DATABASE_URL", "postgresql://127.0.0.1:1/db")
    assert job_filter.QUEUES("") == []
    monkeypatch.setenv("OUTLIVE_LEASE_S", "nonsense")
    assert job_filter.TASKS("") == []
