"""Whether the demo ended as it must: compares the database with what the sites offered."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, cast
from uuid import UUID

import outlive
from coins import catalog, site, tasks
from outlive import db, store
from outlive.cli import screen
from outlive.cli.demo import snapshot
from outlive.cli.demo.snapshot import Snapshot, count
from outlive.states import Outcome, State

Key = tuple[str, str, str]
"""The scope, source and key of a record."""

LOSS = ("pid", "jobs", "noticed_s", "replaced_s")
EVIDENCE = (
    *("id", "task", "source", "details", "outcome", "signal", "peak_memory_bytes", "cpu_s", "error_message"),
    *("stack", "output"),
)
"""What the summary tells of a lost worker and of a quarantined job."""


@dataclass(slots=True)
class Loss:
    """The killed worker, and how long its death took to be noticed and made good, by the database's clock."""

    pid: int
    killed_at: datetime
    jobs: int
    successor: int
    noticed_s: float | None = None
    replaced_s: float | None = None

    def update(self, seen: Snapshot, say: Callable[[str], None]) -> None:
        dead, new = seen.worker(self.pid), seen.worker(self.successor)
        if self.noticed_s is None and dead is not None and dead["state"] == "dead":
            self.noticed_s = self._took_s(dead["died_at"])
            say(f"the dead worker was noticed after {screen.duration(self.noticed_s)}, and its jobs are free again")
        if self.replaced_s is None and new is not None:
            self.replaced_s = self._took_s(new["started_at"])
            say(f"another worker took its place after {screen.duration(self.replaced_s)}")

    def _took_s(self, until: datetime) -> float:
        return round((until - self.killed_at).total_seconds(), 2)


@dataclass(slots=True)
class Played:
    """What the demo did."""

    intakes: Sequence[catalog.Intake]
    sites: Mapping[str, site.Site]
    weak: str
    """The site that is down for a while."""
    acknowledged: list[UUID] = field(default_factory=list)
    loss: Loss | None = None
    opened: int = 0
    closed: int = 0
    """How often the breaker of the weak site opened and closed."""


def expected_jobs(intakes: Sequence[catalog.Intake]) -> Counter[State]:
    """Each coin is collected once, searched for on three sites, and valued after each search that succeeds."""
    searches = len(intakes) * len(catalog.KINDS)
    poisoned = sum(site.is_poison(name, one["title"]) for name in catalog.KINDS for one in intakes)
    succeeded = len(intakes) + 2 * (searches - poisoned)
    return Counter({State.SUCCEEDED: succeeded, State.QUARANTINED: poisoned})


def expected_points(played: Played) -> tuple[dict[Key, tuple[float, int]], int]:
    """Every price that can be read, with its best match and its cents; and how many offers there are in all."""
    points: dict[Key, tuple[float, int]] = {}
    shown = 0
    for intake in played.intakes:
        for name, kind in catalog.KINDS.items():
            if site.is_poison(name, intake["title"]):
                continue
            pages = catalog.pages(name, intake["title"], intake["series"], intake["denomination"])
            for offer in chain.from_iterable(pages):
                url = f"http://{played.sites[name].place}{offer.path}"
                facts: dict[str, Any] = {"title": offer.title, "price_cents": offer.cents, "day": offer.day}
                key = (
                    tasks.prices_of(intake["id"]),
                    name,
                    outlive.dedupe_key(offer.external_id, url=url, kind=kind, **facts),
                )
                match = tasks.match_strength(intake, offer.title)
                points[key] = max(points.get(key, (0.0, 0)), (match, offer.cents))
                shown += 1
    return points, shown


def summary(connection: db.Connection, played: Played) -> dict[str, Any]:
    """The figures of the demo, and the list of what is wrong."""
    seen = snapshot.take(connection)
    states = seen.states()
    records = db.run(connection, store.list_records(limit=1_000_000))
    written = sum(one.scope.startswith(tasks.PRICES) for one in records)
    loss = played.loss
    figures: dict[str, Any] = {
        "coins": len(played.intakes),
        "acknowledged": len(played.acknowledged),
        "spawned": states.total() - len(played.acknowledged),
        "finished": states[State.SUCCEEDED],
        "failed": states[State.FAILED],
        "retried": count(connection, _RETRIED),
        "quarantined": [{key: row[key] for key in EVIDENCE} for row in db.run(connection, store.list_killers())],
        "workers_lost": [{name: getattr(loss, name) for name in LOSS}] if loss else [],
        "breaker": {"source": played.weak, "opened": played.opened, "closed": played.closed},
        "requests": sum(one.requests for one in played.sites.values()),
        "records_written": written,
        "duplicates_refused": count(connection, _FOUND) - written,
        "valuations": sum(one.scope == tasks.VALUATIONS for one in records),
        "finished_twice": count(connection, _TWICE),
    }
    wrong = [
        *_wrong_jobs(connection, played, seen, figures),
        *_wrong_records(played, records, figures),
        *_wrong_troubles(played, seen),
    ]
    return {**figures, "wrong": wrong, "right": not wrong}


_RETRIED = "select count(*) from outlive.attempts where outcome <> 'released' and state in ('pending', 'retryable')"
_TWICE = """
select count(*) from (
  select from outlive.attempts where outcome = 'succeeded' group by job_id having count(*) > 1) twice
"""
_FOUND = """
select coalesce(sum((a.result ->> 'found')::int), 0) from outlive.attempts a join outlive.jobs j on j.id = a.job_id
where a.outcome = 'succeeded' and j.task like '%.search'
"""


def _wrong_jobs(connection: db.Connection, played: Played, seen: Snapshot, figures: dict[str, Any]) -> Iterator[str]:
    found = db.run(connection, store.statuses(list(played.acknowledged)))
    if missing := [id for id in played.acknowledged if found.get(id) is not State.SUCCEEDED]:
        yield f"{len(missing)} acknowledged jobs did not succeed, {missing[0]} among them"
    if seen.states() != expected_jobs(played.intakes):
        yield f"jobs are {_words(seen.states())} instead of {_words(expected_jobs(played.intakes))}"
    if figures["finished_twice"]:
        yield f"{figures['finished_twice']} jobs were finished twice"
    causes = sorted((str(one["outcome"]), str(one["signal"])) for one in figures["quarantined"])
    if causes != [("crashed", "SIGSEGV"), ("out_of_memory", "SIGKILL")]:
        yield f"in quarantine are {causes} instead of one job that segfaults and one that eats memory"


def _wrong_records(played: Played, records: Sequence[outlive.Record], figures: dict[str, Any]) -> Iterator[str]:
    def data(scope: str) -> dict[str, object]:
        return {one.dedupe_key: one.data for one in records if one.scope == scope}

    if data(tasks.INTAKES) != {one["id"]: one for one in played.intakes}:
        yield "the recorded coins differ from those that came in"
    points = [one for one in records if one.scope.startswith(tasks.PRICES)]
    found = {(one.scope, one.source, one.dedupe_key): (one.strength, _cents(one)) for one in points}
    expected, shown = expected_points(played)
    if found != expected:
        missing, more = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
        yield f"of {len(expected)} price points {missing} are missing, {more} are unexpected, or some differ"
    if figures["duplicates_refused"] != shown - len(expected):
        yield f"{figures['duplicates_refused']} duplicates were refused instead of {shown - len(expected)}"
    ids = [one["id"] for one in played.intakes]
    if data(tasks.VALUATIONS) != {
        id: tasks.valued([one for one in points if one.scope == tasks.prices_of(id)]) for id in ids
    }:
        yield "the valuations do not follow from the price points, one for each coin"


def _cents(point: outlive.Record) -> int:
    return int(cast("dict[str, Any]", point.data)["cents"])


def _wrong_troubles(played: Played, seen: Snapshot) -> Iterator[str]:
    """Everything that must go wrong did."""
    loss = played.loss
    if loss is None or loss.noticed_s is None or loss.replaced_s is None:
        yield "no worker was killed, noticed and replaced"
    for outcome in (Outcome.LOST, Outcome.TIMED_OUT, Outcome.FAILED):
        if not any(row["outcome"] == outcome for row in seen.bad_ends):
            yield f"no attempt ended as {outcome}"
    if not played.opened or played.opened != played.closed:
        yield f"the breaker of {played.weak} opened {played.opened} times and closed {played.closed} times"


def _words(states: Mapping[Any, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(states.items()) if number)
