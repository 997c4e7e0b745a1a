"""Replays the history of a game, and names each step that the models in proof/ do not allow.

It reads the file that `--report` writes, and imports nothing of outlive and nothing of the game, so it shares no
mistake with them: python -m outlive_lab.gameday.replay FILE. A transaction is one step, as in the models. Each rule is
named after the promise or the action that it comes from; docs/explanation/model.md lists them.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Row = Mapping[str, Any]

FINAL = frozenset({"succeeded", "failed", "cancelled"})
COUNTERS = ("failures", "crashes", "losses")
CHARGES = {
    "failures": {"failed", "timed_out", "out_of_memory"},
    "crashes": {"crashed", "out_of_memory"},
    "losses": {"lost"},
}
"""The outcomes that each counter counts."""
NEXT_STATES = {
    None: {"active"},
    "active": {"active", "stale", "draining", "stopped", "dead"},
    "stale": {"active", "stale", "draining", "stopped", "dead"},
    "draining": {"draining", "stale", "stopped", "dead"},
    "stopped": {"stopped"},
    "dead": {"dead"},
}
"""Of a worker. A dead one that lives comes back under another id."""
PAUSED_S = 3.0
"""How long after a queue is paused a worker may still claim what it has looked for before."""
SLACK_S = 0.05
"""How exactly the game knows the database's clock."""


@dataclass(frozen=True, slots=True)
class Illegal:
    n: int
    rule: str
    subject: str
    words: str


@dataclass(slots=True)
class Job:
    places: dict[str, Row] = field(default_factory=dict)
    ended: str | None = None
    token: int = 0
    """The last one."""
    needs: dict[str, str] = field(default_factory=dict)
    """The jobs that it waits for, each with on_failure."""
    steps: dict[str, Any] = field(default_factory=dict)
    """What it has kept."""
    received: list[Any] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, Row]:
        """Where it is, with the reason if it is held."""
        for table, row in self.places.items():
            return (row["why"] if table == "held" else table), row
        return (self.ended or "nowhere"), {}


@dataclass(slots=True)
class Change:
    """What one transaction has done to one job."""

    id: str
    job: Job
    steps: list[Row]
    before: tuple[str, Row]
    over: bool
    """The job had ended before."""
    ends: list[Row] = field(default_factory=list)
    kept: list[Row] = field(default_factory=list)
    """Steps."""
    received: list[Any] = field(default_factory=list)
    """Signals that are gone."""
    waited: Row | None = None
    """Its last row in `waiting` that this transaction has made."""

    @property
    def began_s(self) -> float:
        return float(self.steps[0]["began_s"])


Found = Iterator[tuple[str, str]]
"""A rule, and how it is broken."""


class Replay:
    def __init__(self, lines: Iterable[Row]) -> None:
        self.jobs: dict[str, Job] = defaultdict(Job)
        self.workers: dict[str, Row] = {}
        self.dead_s: dict[str, float] = {}
        self.paused_s: dict[str, float] = {}
        self.about: dict[str, Row] = {}
        self.faults: dict[str, list[Row]] = defaultdict(list)
        self.running: dict[str, set[str]] = defaultdict(set)
        """By key."""
        self.illegal: list[Illegal] = []
        self.transactions: dict[int, list[Row]] = defaultdict(list)
        for line in lines:
            if line["is"] == "job":
                self.about[line["id"]] = line
            elif line["is"] == "fault":
                self.faults[line["worker"]].append(line)
            else:
                self.transactions[line["transaction"]].append(line)

    def run(self) -> list[Illegal]:
        """Of each job and worker the first step that breaks a rule, in their order.

        A transaction that has seen another one, or waited for it, has written its last row later."""
        for steps in sorted(self.transactions.values(), key=lambda some: some[-1]["n"]):
            self._transact(steps)
        first: dict[tuple[str, str], Illegal] = {}
        for one in self.illegal:
            first.setdefault((one.subject, one.rule), one)
        return list(first.values())

    def _transact(self, steps: list[Row]) -> None:
        touched: dict[str, list[Row]] = defaultdict(list)
        for step in steps:
            row = step["row"]
            if step["table"] == "workers":
                self._note(step["n"], row["name"], self._worker(step, row))
            elif step["table"] == "queues":
                self.paused_s.pop(row["name"], None)
                if row["paused_at"]:
                    self.paused_s[row["name"]] = step["at_s"]
            elif step["table"] == "dependencies":
                if step["change"] == "insert":
                    self.jobs[row["job_id"]].needs[row["needs"]] = row["on_failure"]
            else:
                touched[row.get("job_id") or row["id"]].append(step)
        # A transaction may end a job and release another one: all is done before it is judged.
        for change in [self._apply(id, some) for id, some in touched.items()]:
            self._note(change.steps[-1]["n"], change.id, self._judge(change))

    def _note(self, n: int, subject: str, found: Found) -> None:
        self.illegal += [Illegal(n, rule, subject, words) for rule, words in found]

    def _apply(self, id: str, steps: list[Row]) -> Change:
        job = self.jobs[id]
        change = Change(id, job, steps, job.place, job.ended is not None)
        for step in steps:
            table, row = step["table"], step["row"]
            match table, step["change"]:
                case "attempts", "insert":
                    change.ends.append(row)
                    if row["state"] in FINAL:
                        job.ended = row["state"]
                case "steps", "insert":
                    change.kept.append(row)
                case "signals", "delete":
                    change.received.append(row["value"])
                case ("steps", _) | ("signals", _) | ("attempts", _):
                    pass
                case _, "delete":
                    # A function that is called in the statement may have put another row there already.
                    if job.places.get(table) == row:
                        del job.places[table]
                case _:
                    job.places[table] = row
                    change.waited = row if table == "waiting" else change.waited
        if key := self.about[id]["key"]:
            (self.running[key].add if "running" in job.places else self.running[key].discard)(id)
        return change

    def _judge(self, change: Change) -> Found:
        job, (was, old), (now, new) = change.job, change.before, change.job.place
        if change.over and (job.places or change.ends):
            yield "OneEnd", f"it had ended, and is {now} after another step"
        if len(job.places) + (job.ended is not None) != 1:
            where = " and ".join([*job.places, *filter(None, [job.ended])]) or "nowhere"
            yield "OnePlace", f"it was {was}, and is {where}"
            return
        moved = old.get("token") != new.get("token")
        for end in change.ends:
            if was == "running" and end["token"] == old["token"]:
                yield from self._end(change, old, end)
            elif end["worker"] is not None or end["outcome"] != "cancelled" or was == "running":
                yield "NoStaleEnd", f"attempt {end['attempt']} ends with token {end['token']}, and it is {was}"
        if was == "running" and moved and now != "suspended" and not change.ends:
            yield "End", f"its attempt {old['attempt']} is gone without an end"
        if was == now == "running" and not moved:
            yield from _keep(old, new)
        if now == "running" and moved:
            # One statement ends attempts and claims jobs: it may be the same one, or one that it has released.
            yield from self._claim(change, *(("waiting", change.waited) if change.waited else (was, old)), new)
        if was in ("dependent", "nowhere") and now not in ("dependent", "blocked", "cancelled"):
            yield from self._release(job)
        if was == "suspended" and (now != "suspended" or new["ready_at"] != old["ready_at"]) and now not in FINAL:
            yield from self._wake(change, old)
        if now == "quarantined" != was and not self.about[change.id]["kills"]:
            yield "NoInnocentIsConvicted", "it is quarantined, and kills no process"
        yield from _steps(change)

    def _claim(self, change: Change, was: str, old: Row, new: Row) -> Found:
        """Claim, ClaimSuspect and Resume."""
        job, worker = change.job, self.workers.get(new["worker"], {})
        if was not in ("waiting", "suspect", "suspended"):
            yield "Claim", f"it was {was}, and a worker claims it"
            return
        if new["token"] <= job.token:
            yield "Claim", f"its token {new['token']} is not later than {job.token}"
        job.token = new["token"]
        if new["attempt"] != old["attempt"] + 1:
            yield "Claim", f"attempt {new['attempt']} follows attempt {old['attempt']}"
        if seconds(old["ready_at"]) > change.began_s + SLACK_S:
            yield "Claim", "it is claimed before its time"
        if was == "suspended" and old["parked_by"] != new["worker"]:
            yield "Resume", "another worker has its process"
        if any(new[name] > old[name] for name in COUNTERS):
            yield "NoLossWithoutADeath", f"a claim charges it: {counts(old)}, then {counts(new)}"
        if change.began_s > self.dead_s.get(new["worker"], float("inf")) + SLACK_S:
            yield "Claim", f"its worker {worker.get('name')} was declared dead before"
        if not worker.get("watched"):
            yield "show life before the first claim", f"its worker {worker.get('name')} has shown no life yet"
        if change.began_s > self.paused_s.get(new["queue"], float("inf")) + PAUSED_S:
            yield "paused", f"its queue {new['queue']} is paused"
        key, limit = self.about[change.id]["key"], self.about[change.id]["limit"]
        if key and len(self.running[key]) > limit:
            yield "limit", f"{len(self.running[key])} jobs of the key {key} run, and {limit} may"

    def _end(self, change: Change, old: Row, end: Row) -> Found:
        if (end["worker"], end["attempt"]) != (old["worker"], old["attempt"]):
            yield "NoForeignEnd", f"another worker ends attempt {old['attempt']}, or under another number"
        worker = self.workers.get(old["worker"], {})
        for name, outcomes in CHARGES.items():
            if end[name] > old[name] + (end["outcome"] in outcomes):
                words = f"{counts(old)} before, {counts(end)} after, and it {end['outcome']}"
                yield "NoLossWithoutADeath", words
        if end["outcome"] in ("lost", "crashed"):
            name = "losses" if end["outcome"] == "lost" else "crashes"
            if end[name] <= old[name]:
                yield "EveryDeathIsCounted", f"it {end['outcome']}, and {counts(end)} are counted"
        if end["outcome"] == "lost":
            if not old["begun"] or worker.get("stop_requested_at"):
                yield "NoLossWithoutADeath", "it is lost, and had not begun, or its worker was told to stop"
            zygotes = any(one["of"] == "zygote" for one in self.faults[worker.get("name", "")])
            over = seconds(old["lease_until"]) <= change.began_s + SLACK_S
            if worker.get("state") not in ("dead", "stopped") and not over and not zygotes:
                yield "NoLossOfTheLiving", "it is lost, its worker is not dead, and its lease is not over"
        now, new = change.job.place
        if end["state"] not in FINAL and now != "running":
            if (now == "quarantined") != (end["state"] == "quarantined"):
                yield "Fate", f"its attempt says {end['state']}, and it is {now}"
            elif any(new[name] != end[name] for name in (*COUNTERS, "attempt")):
                yield "Fate", f"its attempt says {counts(end)}, and its row {counts(new)}"

    def _release(self, job: Job) -> Found:
        for need, on_failure in job.needs.items():
            state = self.jobs[need].place[0]
            if state not in (*FINAL, "quarantined"):
                yield "ReleasedAfterTheEnds", f"it is released, and {need} is {state}"
            elif state != "succeeded" and on_failure != "proceed":
                yield "ReleasedAfterTheEnds", f"it is released, although {need} is {state}"

    def _wake(self, change: Change, old: Row) -> Found:
        """EndWait, Resume and Send: the time of a wait has come, or what it waits for."""
        if old["unmet"] is not None:
            open_ones = [need for need in change.job.needs if self.jobs[need].place[0] not in (*FINAL, "quarantined")]
            if open_ones:
                yield "EndWait", f"it goes on, and waits for {open_ones[0]}"
        elif seconds(old["ready_at"]) > change.began_s + SLACK_S:
            received = any(one["name"] == old["step"] and one["value"] is not None for one in change.kept)
            if not received:
                yield "EndWait", f"its wait in {old['step']} is not over"

    def _worker(self, step: Row, row: Row) -> Found:
        if step["change"] == "delete":
            return
        state = self.workers.get(row["id"], {}).get("state")
        self.workers[row["id"]] = row
        if row["state"] not in NEXT_STATES[state]:
            yield "Declare", f"it was {state}, and is {row['state']}"
        if row["state"] == "dead" != state:
            self.dead_s[row["id"]] = step["at_s"]
            hit = [one for one in self.faults[row["name"]] if one["of"] == "worker"]
            if not any(one["at_s"] <= step["at_s"] + SLACK_S for one in hit):
                yield "NoLivingWorkerIsDeclaredDead", "it is declared dead, and nothing has killed or frozen it"


def _keep(old: Row, new: Row) -> Found:
    """Renew, mark_begun, and what a step or a loss that is taken back changes."""
    if (old["worker"], old["attempt"]) != (new["worker"], new["attempt"]):
        yield "Renew", "its attempt has another worker or number"
    if seconds(new["lease_until"]) < seconds(old["lease_until"]):
        yield "Renew", "its lease becomes shorter"
    if any(new[name] > old[name] for name in COUNTERS):
        yield "NoLossWithoutADeath", f"it is charged while it runs: {counts(old)}, then {counts(new)}"


def _steps(change: Change) -> Found:
    job = change.job
    for step in change.steps:
        if step["table"] == "steps":
            name, value = step["row"]["name"], step["row"]["value"]
            if step["change"] == "delete" or job.steps.setdefault(name, value) != value:
                yield "CodeKnowsItsSteps", f"its step {name} is changed or dropped"
    for one in change.kept:
        if one["name"].startswith("receive:") and one["value"] is not None:
            if one["value"] in job.received:
                yield "NoSignalTwice", f"it receives {one['value']} again"
            job.received.append(one["value"])
    for value in change.received:
        if value not in [one["value"] for one in change.kept]:
            yield "NoSignalLost", f"the signal {value} is gone, and is no step"


def seconds(time: str) -> float:
    return float("inf") if time == "infinity" else datetime.fromisoformat(time).timestamp()


def counts(row: Row) -> str:
    return ", ".join(f"{row[name]} {name}" for name in COUNTERS)


def main(path: str) -> int:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        replay = Replay(json.loads(line) for line in file)
    illegal = replay.run()
    for one in illegal:
        print(f"step {one.n}: {one.rule}: {one.subject}: {one.words}")
    print(f"{len(replay.transactions):,} steps of {len(replay.about):,} jobs, {len(illegal)} of them illegal")
    return int(bool(illegal))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
