"""Runs the commands of docs/how-to/command-line.md."""

import shlex

from outlive import db
from outlive.states import Outcome
from tests.driving import pages
from tests.driving.commands import Cli
from tests.driving.making import make, make_finished, state_of

BLOCKS = [block.text for block in pages.blocks_of("how-to/command-line.md")]


def test_the_commands_on_the_page_of_the_command_line_work(cli: Cli, connection: db.Connection) -> None:
    failed = make_finished(connection, Outcome.FAILED, task="shop.fetch")
    slow = make(connection, queue="slow", args=b'["example.org"]')
    finding, changing = (
        [cli(*shlex.split(line, comments=True)[1:]) for line in block.splitlines()] for block in BLOCKS
    )
    assert [ran.code for ran in finding + changing] == [0] * 8
    assert [str(failed) in ran.out for ran in finding] == [True, True, True, False, False]
    assert str(slow) in finding[4].out
    assert changing[0].out == "1 job retried\n"
    assert [state_of(connection, job) for job in (failed, slow)] == ["pending", "cancelled"]
