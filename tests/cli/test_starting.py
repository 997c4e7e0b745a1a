"""How a command starts: it imports only what it needs."""

import os
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from outlive import foreign_options
from outlive.cli import MODULES, load
from tests.driving.commands import Cli, ended

FOR_OTHERS = (
    *("outlive.child", "outlive.client", "outlive.embedded", "outlive.protocol", "outlive.temporary", "outlive.worker"),
    *("pickle", "rich", "sqlite3", "tomllib"),
)
"""What a command needs only if it draws a table, reads a file, starts a server or runs jobs."""


def test_every_command_is_listed_with_the_module_that_registers_it():
    app = load()
    commands = [(one.name, one.callback) for one in app.registered_commands]
    groups = [
        (one.name, one.typer_instance and one.typer_instance.registered_callback) for one in app.registered_groups
    ]
    found: dict[str, set[str]] = {}
    for name, function in commands + [(name, group and group.callback) for name, group in groups]:
        module = getattr(function, "__module__").removeprefix("outlive.cli.")  # noqa: B009
        found.setdefault(module, set()).add(name or getattr(function, "__name__"))  # noqa: B009
    assert {name: module for module, names in found.items() for name in names} == MODULES


def test_a_command_imports_no_other_command_s_module():
    script = "import sys; from outlive.cli import load; load(['queues']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    others = {f"outlive.cli.{module}" for module in MODULES.values()} - {"outlive.cli.queues"}
    assert "outlive.cli.queues" in loaded
    assert not {*others, "outlive.worker", "rich.live", "rich.progress"} & set(loaded)


def test_the_package_imports_its_modules_when_a_name_is_first_used():
    script = "import sys, outlive; print(*sys.modules); print(outlive.State.PENDING, outlive.JobFailed.__name__)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded, used = ran.stdout.splitlines()
    assert [name for name in loaded.split() if name.startswith(("outlive.", "msgspec"))] == []
    assert used == "pending JobFailed"


NOTING = """
import atexit, sys, threading
from outlive.cli import main
drawing = set()
sys.addaudithook(
    lambda event, about: (event, about[0]) == ("import", "rich.table") and drawing.add(threading.current_thread())
)
atexit.register(lambda: print(threading.main_thread() in drawing, len(drawing), *sys.modules))
main()
"""


def test_stats_imports_what_draws_while_the_server_counts(database_url, queue):
    queue.make()
    command = [sys.executable, "-c", NOTING, "stats"]
    env = {**os.environ, "OUTLIVE_DATABASE_URL": database_url}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    *_, total, loaded = ran.stdout.splitlines()
    assert total.split() == ["1", "jobs", "1"]
    assert loaded.split()[:2] == ["False", "1"]
    assert "rich._emoji_codes" not in loaded.split()


def test_a_list_without_rows_imports_only_what_it_needs(database_url):
    script = "import atexit, sys; from outlive.cli import main; atexit.register(lambda: print(*sys.modules)); main()"
    command = [sys.executable, "-c", script, "jobs"]
    env = {**os.environ, "OUTLIVE_DATABASE_URL": database_url}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    said, loaded = ran.stdout.splitlines()
    assert said.startswith("no job matches in ")
    assert [name for name in loaded.split() if f"{name}.".startswith(tuple(f"{part}." for part in FOR_OTHERS))] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shutdown",), "shutdown: write `outlive drain --all`"),
        (("purge",), "purge: write `outlive cancel --all --state pending`, with --queue for one queue"),
        (("-A", "shop", "worker"), "-A: write `outlive worker MODULE:APP`"),
        (("worker", "shop:app", "-c", "4", "-Q", "mail"), "-c: write --slots"),
        (("worker", "shop:app", "--concurrency=4"), "--concurrency: write --slots"),
    ],
)
def test_a_command_of_celery_says_what_to_write(words, said):
    ran = ended(Cli(None).process(*words))
    assert (ran.code, ran.err) == (2, f"outlive: there is no {said}\n")


def test_no_word_of_celery_is_a_command_or_an_option_of_ours():
    assert not foreign_options.COMMANDS.keys() & MODULES.keys()
    worker: Any = get_command(load()).commands["worker"]  # type: ignore[attr-defined]
    ours = {option for parameter in worker.params for option in parameter.opts}
    assert not foreign_options.WORKER_OPTIONS.keys() & ours
