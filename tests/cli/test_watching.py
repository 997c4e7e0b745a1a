"""Lists that refresh: on a terminal of 80 columns and 24 lines, and in a pipe."""

import io
import json
import os
import signal

import pytest
from rich.console import Console

from outlive.cli.command import CommandContext
from outlive.cli.stats import Pulse
from outlive.states import Outcome
from tests.cli.test_acting import at_a_terminal, read_until
from tests.driving.making import Queue, new_worker


def fill(queue: Queue) -> None:
    """More of everything than fits."""
    for n in range(9):
        queue.make_quarantined(task=f"shop.a_task_with_a_long_name_that_takes_the_whole_line_{n}" + "x" * 60)
        queue.register_worker(new_worker(), name=f"worker-{n}" + "y" * 70)
        queue.make(queue=f"queue-{n}" + "z" * 60, source=f"source-{n}" + "s" * 60)
    queue.make_many(20), queue.make_finished(), queue.make_finished(Outcome.FAILED)


def test_the_live_statistics_fit_on_a_small_screen(database_url, queue):
    context = CommandContext(database_url, None)
    pulse = Pulse(context.run)
    try:
        for prepare in (lambda _: None, fill):
            prepare(queue)
            console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True)
            lines = console.render_lines(pulse.draw(pulse.look()))
            text = ["".join(part.text for part in line).rstrip() for line in lines]
            assert len(text) <= 23
            for part in ("jobs", "rate", "wait", "run", "queues", "workers", "killers", "sources"):
                assert any(line.startswith(part) for line in text), part
    finally:
        context.close()
    shown = "\n".join(text)
    for words in ("29 pending", "9 quarantined", "1 failed", "p50", "9 in all", "worker-0", "SIGSEGV", "closed"):
        assert words in shown


@pytest.mark.parametrize(("word", "shown", "key"), [("stats", "Ctrl-C ends", "ctrl-c"), ("jobs", "pending", "q")])
def test_a_watched_list_ends_on_q_and_on_ctrl_c(database_url, queue, word, shown, key):
    queue.make()
    with at_a_terminal(database_url, word, "--watch") as (command, terminal):
        said = read_until(terminal, shown)
        if key == "q":
            os.write(terminal, b"q")
        else:
            os.killpg(command.pid, signal.SIGINT)
        assert command.wait(20) == 0
    assert "Traceback" not in said


def test_statistics_in_a_pipe_are_one_line_each(cli, queue):
    queue.make_finished()
    for words in (("stats", "--watch"), ("stats", "--watch", "--json")):
        process = cli.process(*words)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()
        if "--json" in words:
            assert [json.loads(line) for line in lines]
        else:
            assert all(" succeeded=1 " in line and " workers=0" in line for line in lines)
