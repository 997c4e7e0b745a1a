"""Bugs in the functions of the schema, each in another feature, and one short game against all of them: its verdict
names each."""

from dataclasses import dataclass

import pytest

from gameday.test_playing import told
from laboratory import lab
from tests.driving.making import Queue

SEED = 92
"""Its first orders have a fan-in, a batch, and more jobs of a key than may run."""


@dataclass(frozen=True)
class Bug:
    function: str
    right: str
    wrong: str
    rule: str

    def seed(self, queue: Queue) -> None:
        text = queue.value(
            "select pg_get_functiondef(p.oid) from pg_proc p where p.oid::regproc::text = 'outlive.' || %s",
            self.function,
        )
        assert self.right in text, f"outlive.{self.function} does not read like that any more"
        queue.execute(text.replace(self.right, self.wrong).encode())


BUGS = [
    # A job is released when the first of the jobs that it waits for has ended.
    Bug("release_dependents", "h.unmet <= ((", "h.unmet <= 100 + ((", "begun too early"),
    # A callback has no id that would stop the second one.
    Bug(
        "call_back",
        "perform outlive.spawn(due);",
        """perform outlive.spawn(replace(due::text, '"id"', '"other"')::json) from generate_series(1, 2);""",
        "called back twice",
    ),
    # A key forgets the jobs that run.
    Bug("admit", "k.state = 'admitted'", "false", "over its limit"),
    # A firing makes a second job, whose id is not that of the tick.
    Bug(
        "fire",
        "perform outlive.enqueue(ids,",
        "perform outlive.enqueue(s.task, s.args, run_at => ticks[jobs]); perform outlive.enqueue(ids,",
        "fired twice",
    ),
]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_played_game_names_each_seeded_bug(database_url, queue):
    for bug in BUGS:
        bug.seed(queue)
    words = ("--kills", 6, "--rate", 3, "--workers", 2, "--slots", 4, "--seed", SEED, "--busy", "--json")
    code, verdict = told(lab(database_url).process("gameday", *words))
    assert (code, verdict["right"]) == (1, False)
    assert {breach["rule"] for breach in verdict["breaches"]} >= {bug.rule for bug in BUGS}
