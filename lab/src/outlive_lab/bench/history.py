"""What a long history costs: each statement and page beside ten million finished jobs, and beside a thousand.

The content is a `Past`. Then the oldest day of it is pruned: how fast, and what that leaves to the log and to vacuum.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TypeVar
from uuid import UUID

from psycopg import sql

from outlive import db, store
from outlive.states import State
from outlive_lab.bench.calls import WARM_UP, enqueue_many, enqueues, took_ms
from outlive_lab.bench.claims import PRUNE_ENOUGH_PER_S, K, prune
from outlive_lab.bench.databases import Database
from outlive_lab.bench.draining import drain
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.pages import FILTERS, MUST_FILTER_MS, MUST_MS, PAGES, dashboard
from outlive_lab.bench.past import Past
from outlive_lab.bench.processes import Probing
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock
from outlive_lab.bench.worker import command_s

T = TypeVar("T")

BESIDE = Bound("of reference", 0.95)
CLAIMS = (1, 8, K)
TABLES = ("jobs", "attempts", "steps")
ASKED = 7
"""How often each view and page is asked for, after once that is not counted."""
MUST_COUNT_S = 0.3
DAY_S = 86_400.0
_OLDEST_S = """
select extract(epoch from outlive.now() - min(ended_at)) from outlive.attempts where state = 'succeeded'
"""
_VACUUM = "vacuum outlive.jobs, outlive.attempts, outlive.steps"
_SIZE = "select pg_total_relation_size(%s::regclass)"
_VIEWS = "select viewname from pg_views where schemaname = 'outlive' order by 1"
BY_ID = {"job_states": "id", "ended_attempts": "job_id"}
"""The views that have a row for each job or attempt, which one asks for by the id of a job."""


def history(run: Run) -> Iterator[Figure]:
    few, many = run.free, run.loaded
    Past(run.sizes.few).put(few)
    Past(run.sizes.history).put(many)
    try:
        for table in TABLES:
            [(size,)] = many.connection.execute(_SIZE, [f"outlive.{table}"]).fetchall()
            name = f"size of {table} with indexes, per finished job"
            yield Figure("history", name, "bytes", [size / run.sizes.history])
        reads = run.sizes.reads
        ids = {one.url: _some_ids(one, jobs, reads) for one, jobs in ((few, run.sizes.few), (many, run.sizes.history))}
        yield from _reads(run, ids)
        yield from _pages(run, ids)
        yield from _writes(run)
        many.vacuum()
        yield from _pruning(run)
        taken_s = command_s(many.url, "verify")  # It fails if anything is wrong.
        yield Figure("history", "outlive verify, wall", "s", [taken_s])
    finally:
        few.content = many.content = ""


def _some_ids(database: Database, jobs: int, most: int) -> list[UUID]:
    query = "select id from outlive.jobs tablesample bernoulli (%s)"
    rows = database.connection.execute(query, [min(100.0, 2000.0 * most / jobs)]).fetchall()
    return [id for (id,) in random.Random(1).sample(rows, min(most, len(rows)))]


def _reads(run: Run, ids: dict[str, list[UUID]]) -> Iterator[Figure]:
    """`show`, the counts, the views, and commands."""
    shown = [run.repeated(partial(show, url, some)) for url, some in ids.items()]
    for name, part in (("p50", 49), ("p99", 98)):
        low, high = ([statistics.quantiles(one, n=100)[part] for one in taken] for taken in shown)
        yield Figure("history", f"what `show` reads, {name}", "ms", high, low)
    views = [str(view) for (view,) in run.loaded.connection.execute(_VIEWS).fetchall()]
    every, of_one = sql.SQL("select * from outlive.{}"), sql.SQL("select * from outlive.{} where {} = %(id)s")
    queries = {
        "count_jobs": every.format(sql.SQL("count_jobs()")),
        **{f"view {view}": every.format(sql.Identifier(view)) for view in views if view not in BY_ID},
        **{f"view {view}, one job": of_one.format(*map(sql.Identifier, (view, id))) for view, id in BY_ID.items()},
    }
    for name, query in queries.items():
        low, high = (_asked(database, query, ids[database.url]) for database in (run.free, run.loaded))
        yield Figure("history", name, "ms", high, low, Bound("at most", MUST_COUNT_S * 1000))
    for words in (["stats"], ["jobs"], ["jobs", "--state", "failed"]):
        low, high = ([command_s(one.url, *words) for _ in range(ASKED)] for one in (run.free, run.loaded))
        yield Figure("history", f"outlive {' '.join(words)}, wall", "s", high, low, Bound("at most", MUST_COUNT_S))


def _asked(database: Database, query: sql.Composed, ids: Sequence[UUID]) -> list[float]:
    def ask() -> None:
        database.connection.execute(query, {"id": random.choice(ids)}).fetchall()

    return [took_ms(ask) for _ in range(1 + ASKED)][1:]


def show(url: str, ids: list[UUID]) -> Probing[list[float]]:
    """The milliseconds that the statements of `outlive show` take for each job."""
    with db.connect(url) as connection:

        def look(id: UUID) -> None:
            db.run(connection, store.job(id))
            db.run(connection, store.list_attempts(id))

        for id in ids[:WARM_UP]:
            look(id)
        yield
        return [took_ms(partial(look, id)) for id in ids]


def _pages(run: Run, ids: dict[str, list[UUID]]) -> Iterator[Figure]:
    asked = [(f"page: {name}", path, MUST_MS) for name, path in PAGES.items()]
    asked += [(f"jobs: {name}", f"/jobs?{query}", MUST_FILTER_MS) for name, query in FILTERS.items()]
    taken: dict[str, list[list[float]]] = {}
    for url, some in ids.items():
        with dashboard(url) as ask:
            for name, path, _ in asked:
                samples = [ask(path.format(id=id, n=n)) for n, id in enumerate(some[: 1 + ASKED])][1:]
                taken.setdefault(name, []).append(samples)
    for name, _, most_ms in asked:
        low, high = taken[name]
        yield Figure("history", name, "ms", high, low, Bound("at most", most_ms))


def _writes(run: Run) -> Iterator[Figure]:
    """Claims and enqueues, alternately in both databases."""
    seconds, bulk, refill = run.sizes.seconds, run.sizes.bulk, Stock(count=run.sizes.stock)
    probes: dict[str, Callable[..., Probing[float]]] = {
        **{f"end + claim, k={k}": partial(rate, k=k, seconds=seconds, refill=refill) for k in CLAIMS},
        "enqueue, one by one": partial(enqueues, seconds=seconds),
        f"enqueue_many of {bulk:,}": partial(enqueue_many, count=bulk),
    }
    for name, probe in probes.items():
        low, high = run.in_turn(partial(probe, run.free.url), partial(probe, run.loaded.url))
        yield Figure("history", name, "jobs/s", high, low, BESIDE)


def rate(url: str, *, k: int, seconds: float, refill: Stock) -> Probing[float]:
    drained = yield from drain(url, k=k, seconds=seconds, refill=refill)
    return drained.per_s


def _pruning(run: Run) -> Iterator[Figure]:
    """The oldest day alone, vacuum after it, and then more while jobs are drained."""
    many, seconds = run.loaded, run.sizes.seconds
    [(keep_s,)] = many.connection.execute(_OLDEST_S).fetchall()
    gone, took_s, written = _measured(many, lambda: _prune(many.connection, float(keep_s) - DAY_S))
    yield Figure("history", "prune of the oldest day", "jobs/s", [gone / took_s])
    yield Figure("history", "the same, as a whole", "s", [took_s])
    yield Figure("history", "the same, WAL per pruned job", "bytes", [written / gone])
    _, took_s, written = _measured(many, lambda: many.connection.execute(_VACUUM))
    yield Figure("history", "vacuum after it", "s", [took_s])
    yield Figure("history", "the same, WAL per pruned job", "bytes", [written / gone])
    ready, alone, beside = Stock(count=int(PRUNE_ENOUGH_PER_S * seconds)), list[float](), list[float]()
    for _ in range(run.sizes.samples):
        many.add([ready])
        alone.append(run.one(partial(drain, many.url, k=K, seconds=seconds)).per_s)
        many.add([ready])
        probes = [partial(drain, many.url, k=K, seconds=seconds), partial(prune, many.url, seconds)]
        beside.append(run.processes.measure(probes)[0].per_s)
    yield Figure("history", f"end + claim, k={K}, while jobs are pruned", "jobs/s", beside, alone)


def _prune(connection: db.Connection, keep_s: float) -> int:
    gone = 0
    for state in (State.SUCCEEDED, State.CANCELLED):
        more = True
        while more:
            pruned, more, _ = db.run(connection, store.prune_finished(state, keep_s=keep_s))
            gone += pruned
    return gone


def _measured(database: Database, work: Callable[[], T]) -> tuple[T, float, int]:
    """What the work gives, the seconds that it takes, and the bytes that it writes to the log."""
    began, began_s = _written(database), monotonic()
    made = work()
    return made, monotonic() - began_s, _written(database) - began


def _written(database: Database) -> int:
    [(written,)] = database.connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
    return int(written)
