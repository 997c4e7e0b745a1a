"""Bugs that are put into a copy of outlive, and played: each must be caught, or the checks of a game prove little.

python -m outlive_lab.gameday.seeded DIRECTORY plays all of them, and writes seeded-bugs.md there. The copy is what the
workers, the clients and the schema of such a game come from. The checkers read rows, so they are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outlive

KILLS, SEED = 6, 92
PATIENCE_S = 400
DECK = "CHILD: 4, TREE: 1"
FUNCTIONS = "sql/schema/functions"


@dataclass(frozen=True, slots=True)
class Bug:
    """What a worker does wrong, the pieces of text that make it do so, and a rule that must find it."""

    name: str
    rule: str
    patches: tuple[tuple[str, str, str], ...]
    """A file below outlive, the text that is right, and another one."""
    deck: str = DECK
    """The faults of its game."""
    rate: float = 2.0
    """How many of them happen in a second."""
    order: str = ""
    """The only kind of orders (orders.py); empty: all."""
    task: str = ""
    """The only task of jobs that are ordered by themselves."""

    def apply(self, product: Path) -> None:
        for file, right, wrong in self.patches:
            text = (product / file).read_text(encoding="utf-8")
            if text.count(right) != 1:
                raise ValueError(f"{self.name}: {file} does not have this once: {right}")
            (product / file).write_text(text.replace(right, wrong), encoding="utf-8")


LIVING_LOOK_DEAD = ("sql/schema/views.sql", "((l.key, l.backend_pid) in (", "((l.key, -1) in (")
"""No lock is seen."""
NOT_ASKED = (
    "sql/statements/watchers.sql",
    "exists (select from outlive.workers k where k.id = :worker::uuid and k.state = 'dead') as dead,",
    ":worker::uuid is null as dead,",
)
"""A worker does not ask each second whether it was declared dead."""

BUGS = (
    Bug(
        "completes a job without its token",
        "stale effect",
        (
            (
                f"{FUNCTIONS}/completion.sql",
                "where r.token = proven.token and outlive.attempt_secret(k.secret, r.token) = proven.secret;",
                "where r.id = coalesce((select a.job_id from outlive.attempts a where a.token = proven.token), "
                "(select o.id from outlive.running o where o.token = proven.token));",
            ),
            (
                f"{FUNCTIONS}/completion.sql",
                "perform outlive.complete_with_records(token, (",
                "perform outlive.complete_with_records((outlive.proven(token, secret)).token, (",
            ),
        ),
        "PAUSE: 4",
        rate=0.4,
        order="alone",
        task="pay",
    ),
    Bug(
        "leaves an attempt running that it has ended",
        "step: OnePlace",
        (
            (
                f"{FUNCTIONS}/completion.sql",
                "delete from outlive.running r where r.token = any(tokens) and r.worker = by_worker\n"
                "    returning r as had, r.*, width_bucket(r.token, tokens) as n),",
                "select r as had, r.*, width_bucket(r.token, tokens) as n from outlive.running r\n"
                "    where r.token = any(tokens) and r.worker = by_worker),",
            ),
        ),
    ),
    Bug(
        "ends a job, and ends it again",
        "step: OnePlace",
        (
            (
                f"{FUNCTIONS}/completion.sql",
                "elsif v.state in ('pending', 'retryable') then",
                "elsif v.state in ('pending', 'retryable', 'failed') then",
            ),
        ),
        order="linked",
    ),
    Bug(
        "loses an end that comes with others",
        "given up wrongly",
        (
            (
                "worker/ending/outbox.py",
                "ends, self.waiting = self.waiting, []",
                "ends, self.waiting = self.waiting[:1], []",
            ),
        ),
    ),
    Bug("declares the living dead", "step: NoLivingWorkerIsDeclaredDead", (LIVING_LOOK_DEAD,)),
    Bug(
        "lives on when it was declared dead",
        "step: Declare",
        (
            LIVING_LOOK_DEAD,
            NOT_ASKED,
            (
                "sql/statements/workers.sql",
                "where k.id = :worker::uuid and k.state in ('active', 'stale', 'draining')\nreturning k.drain",
                "where k.id = :worker::uuid\nreturning k.drain",
            ),
        ),
        rate=0.4,
    ),
    Bug(
        "claims when it was declared dead",
        "step: Claim",
        (
            LIVING_LOOK_DEAD,
            NOT_ASKED,
            (
                f"{FUNCTIONS}/claims.sql",
                "where not exists (select from outlive.workers d where d.id = by_worker and d.state = 'dead')",
                "where true",
            ),
        ),
        rate=0.4,
    ),
    Bug(
        "never declares the dead dead",
        "not buried",
        (
            (
                "worker/fleet/reaper.py",
                "if dead := self.absences.proven(now) | await self._never_locked(others, now):",
                "if False and (dead := self.absences.proven(now)):",
            ),
        ),
    ),
    Bug(
        "takes attempts whose leases are not over",
        "step: NoLossOfTheLiving",
        (
            (
                "sql/statements/attempts.sql",
                "where r.lease_until < least(outlive.now(), to_timestamp(:by::double precision)) and",
                "where least(:by::double precision, 0) = 0 and",
            ),
        ),
        "PAUSE: 4",
        rate=0.4,
        order="alone",
        task="pay",
    ),
    Bug(
        "charges jobs for a deploy",
        "step: NoLossWithoutADeath",
        (
            (
                f"{FUNCTIONS}/verdict.sql",
                "return had.begun and not exists (\n"
                "  select from outlive.workers w where w.id = had.worker and w.stop_requested_at is not null);",
                "return true;",
            ),
        ),
        "DEPLOY: 4",
        order="alone",
        rate=0.2,
    ),
    Bug(
        "forgets crashes",
        "step: EveryDeathIsCounted",
        ((f"{FUNCTIONS}/verdict.sql", "c int := had.crashes + (kind = 'crash')::int;", "c int := had.crashes;"),),
        order="linked",
    ),
    Bug(
        "claims from a paused queue",
        "step: paused",
        (
            (
                "sql/schema/views.sql",
                "where not exists (select from outlive.queues p where p.name = q.name and p.paused_at is not null);",
                "where true;",
            ),
            (
                "sql/statements/lanes.sql",
                "select q.name, null, null, null, null, null from outlive.queues q where q.paused_at is not null;",
                "select q.name, null, null, null, null, null from outlive.queues q where false;",
            ),
        ),
        "QUEUE: 2, CHILD: 4",
        rate=0.4,
        order="alone",
    ),
    Bug(
        "ignores the limit of a key",
        "step: limit",
        (
            (
                f"{FUNCTIONS}/keys.sql",
                "where k.key = n.key and k.state = 'admitted') taken, lateral (",
                "where false) taken, lateral (",
            ),
        ),
        order="rush",
    ),
    Bug(
        "keeps the slot of a key",
        "unfinished",
        (
            (
                f"{FUNCTIONS}/keys.sql",
                "with gone as (delete from outlive.keyed_jobs k where k.job_id = any(ids) returning k.key)",
                "with gone as (select k.key from outlive.keyed_jobs k where k.job_id = any(ids))",
            ),
        ),
        order="rush",
    ),
    Bug(
        "releases a job when the first that it waits for has ended",
        "step: ReleasedAfterTheEnds",
        ((f"{FUNCTIONS}/dependencies.sql", "and h.unmet <= ((", "and h.unmet <= 100 + (("),),
        order="linked",
    ),
    Bug(
        "wakes a sleeper twice",
        "step: OnePlace",
        (
            (
                f"{FUNCTIONS}/waits.sql",
                "delete from outlive.held h\n    where h.id = any(ids) and (h.parked_by is null or h.ready_at <= "
                "outlive.now() - patience) returning h.*),",
                "select h.* from outlive.held h\n    where h.id = any(ids) and (h.parked_by is null or h.ready_at <= "
                "outlive.now() - patience)),",
            ),
        ),
        order="durable",
    ),
    Bug(
        "wakes a sleeper before its time",
        "step: EndWait",
        (
            (
                f"{FUNCTIONS}/waits.sql",
                "where h.why = 'suspended' and h.ready_at <= outlive.now()\n",
                "where h.why = 'suspended' and h.ready_at < 'infinity'\n",
            ),
        ),
        order="durable",
    ),
    Bug(
        "receives a signal twice",
        "step: NoSignalTwice",
        (
            (
                f"{FUNCTIONS}/waits.sql",
                "delete from outlive.signals s where s.number = (",
                "select s.value into value from outlive.signals s where s.number = (",
            ),
            (f"{FUNCTIONS}/waits.sql", "\n      returning s.value into value;", ";"),
        ),
        order="durable",
    ),
    Bug(
        "calls back twice",
        "called back twice",
        (
            (
                f"{FUNCTIONS}/batches.sql",
                "perform outlive.spawn(due);",
                """perform outlive.spawn(replace(due::text, '"id"', '"other"')::json) from generate_series(1, 2);""",
            ),
        ),
        order="batched",
    ),
    Bug(
        "fires twice",
        "fired twice",
        (
            (
                f"{FUNCTIONS}/schedules.sql",
                "perform outlive.enqueue(ids,",
                "perform outlive.enqueue(s.task, s.args, run_at => ticks[jobs]); perform outlive.enqueue(ids,",
            ),
        ),
        order="alone",
    ),
    Bug(
        "begins the jobs of a queue late",
        "begun late",
        (
            (
                f"{FUNCTIONS}/claims.sql",
                "coalesce(lane.mark, '-infinity') and outlive.now()\n",
                "coalesce(lane.mark, '-infinity') and outlive.now()\n"
                "              - interval '45 seconds' * (lane.queue = 'gameday aside')::int\n",
            ),
        ),
        order="alone",
    ),
)


def with_deck(counts: str, order: str = "", task: str = "") -> str:
    """A program that plays a game of these faults and orders only, with little time between faults that stop
    everything."""
    wanted = ", ".join(f"d.Kind.{count}" for count in counts.split(", "))
    lines = ["from outlive_lab.gameday import deck as d, faults as f", "f.CALM_S = 5.0", f"wanted = {{{wanted}}}"]
    lines += ["d.DECK = {kind: (wanted.get(kind, 0), *rest) for kind, (_, *rest) in d.DECK.items()}"]
    lines += ["from outlive_lab.gameday import jobs, orders as o"]
    lines += [f"o.ORDERS = {{o.{order}: 1}}"] if order else []
    lines += [f"o.TASKS = {{jobs.{task}: 1}}"] if task else []
    lines += ["from outlive_lab.commands import main", "main()"]
    return "\n".join(lines)


def play(bug: Bug | None, directory: Path) -> dict[str, Any]:
    """The verdict of a game of the copy in that directory, with the bug or as it is."""
    shutil.copytree(Path(outlive.__file__).parent, directory / "outlive", ignore=shutil.ignore_patterns("__pycache__"))
    if bug is not None:
        bug.apply(directory / "outlive")
    program = with_deck(bug.deck, bug.order, bug.task) if bug else with_deck(DECK)
    small = ("--workers", 2, "--slots", 4, "--kills", KILLS, "--rate", bug.rate if bug else 2.0, "--seed", SEED)
    patience = () if bug else ("--busy",)
    ran = subprocess.run(
        [sys.executable, "-c", program, "gameday", *map(str, small), "--json", *patience],
        env={**os.environ, "PYTHONPATH": str(directory)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if not ran.stdout:
        raise RuntimeError(ran.stderr[-2000:])
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def found(verdict: dict[str, Any]) -> dict[str, int]:
    return {breach["rule"]: breach["count"] for breach in verdict["breaches"]}


def main(directory: Path, text: str = "") -> int:
    """Play the bugs with this text in their name, and write a line for each into the table."""
    page, missed = directory / "seeded-bugs.md", 0
    for bug in (one for one in BUGS if text in one.name):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="outlive-seeded-", dir="/var/tmp") as home:
            verdict = play(bug, Path(home))
        rules = found(verdict)
        missed += bug.rule not in rules
        kinds = [[rule for rule in rules if ": " not in rule]]
        kinds += [
            [rule.removeprefix(kind) for rule in rules if rule.startswith(kind)] for kind in ("step: ", "verify: ")
        ]
        cells = [bug.name, *map(", ".join, kinds), f"{time.monotonic() - began:.0f} s"]
        lines = [line for line in page.read_text(encoding="utf-8").splitlines() if f"| {bug.name} |" not in line]
        page.write_text("\n".join([*lines, f"| {' | '.join(cells)} |"]) + "\n", encoding="utf-8")
        print(*cells, {kind: n for kind, n in verdict["faults"].items() if n}, sep=" | ", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
