"""The pages of the dashboard beside many jobs: how long each takes, from the request to the last byte."""

from __future__ import annotations

import http.client
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from outlive.temporary.program import dying_with_this
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock

MUST_MS = 100
LIVE = 100_000
TASKS = ("shop.fetch", "shop.parse", "shop.thumbnail", "mail.send")
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs of a state": "/jobs?state=pending",
    "jobs of a state and a task": "/jobs?state=succeeded&task=mail.send",
    "jobs of a rare task": "/jobs?task=pdf.render",
    "jobs by text": "/jobs?text=nowhere",
    "jobs by id": "/jobs?text={id}",
    "job": "/jobs/{id}",
    "killers": "/killers",
    "workers": "/workers",
    "queues": "/queues",
    "sources": "/sources",
    "schedules": "/schedules",
    "batches": "/batches",
    "audit": "/audit",
}


def pages(run: Run) -> Iterator[Figure]:
    """Each page once to warm up, then as often as samples are taken, at least five times."""
    finished, waiting = run.sizes.finished, min(LIVE, run.sizes.backlog)
    stocks = [Stock(count=finished // len(TASKS), task=task, finished=True) for task in TASKS]
    stocks += [Stock(count=waiting // len(TASKS), task=task) for task in TASKS]
    run.loaded.hold("pages", stocks)
    run.loaded.connection.execute(_SPREAD)
    run.loaded.connection.execute(_OTHERS)
    run.loaded.vacuum()
    (row,) = run.loaded.connection.execute("select id from outlive.jobs limit 1").fetchall()
    with dashboard(run.loaded.url) as ask:
        for name, path in PAGES.items():
            there = path.format(id=row[0])
            ask(there)
            samples = [ask(there) for _ in range(max(5, run.sizes.samples))]
            yield Figure("dashboard", f"page: {name}", "ms", samples, bound=Bound("at most", MUST_MS))


_SPREAD = """
update outlive.attempts set ended_at = ended_at - random() * interval '3 hours',
  started_at = ended_at - random() * interval '1 second' where ended_at > outlive.now() - interval '1 hour'
"""
"""Jobs that did not all end at once: a third of them in the last hour."""
_OTHERS = """
with worker as (
  insert into outlive.workers (id, name, hostname, pid, version, slots, started_at, last_seen)
  select gen_random_uuid(), 'worker-' || n, 'host', n, '0.2', 8, now(), now() from generate_series(1, 100) n
  returning id),
gone as (
  delete from outlive.waiting w where w.id in (select o.id from outlive.waiting o limit 1000) returning w.*),
numbered as (select g.*, row_number() over () as n from gone g),
running as (
  insert into outlive.running (id, attempt, worker, lease_until, heartbeat_at, started_at, queue, source, task,
    priority, ready_at, failures, crashes, losses)
  select n.id, 1, k.id, now() + interval '1 hour', now(), now(), n.queue, n.source, n.task, n.priority, n.ready_at,
    0, 0, 0
  from numbered n join (select id, row_number() over () as n from worker) k on k.n = n.n % 100 + 1 where n.n <= 800)
insert into outlive.held (id, why, since, details, queue, source, task, priority, ready_at, attempt, failures, crashes,
  losses)
select n.id, 'quarantined', now(), 'killed its process 3 times', n.queue, n.source, n.task, n.priority, n.ready_at,
  3, 0, 3, 0
from numbered n where n.n > 800
"""
"""A hundred workers with eight running jobs each, and two hundred killers."""


class Ask:
    """A connection to the dashboard, with a session."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=60)
        self._cookie = ""
        self._connection.request("GET", f"/?token={token}")
        with self._connection.getresponse() as answer:
            answer.read()
            self._cookie = (answer.headers["set-cookie"] or "").partition(";")[0]

    def __call__(self, path: str) -> float:
        """The milliseconds that a page took."""
        began_s = monotonic()
        self._connection.request("GET", path, headers={"cookie": self._cookie})
        with self._connection.getresponse() as answer:
            answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise AssertionError(f"{path} gave {answer.status}")
        return (monotonic() - began_s) * 1000


@contextmanager
def dashboard(url: str) -> Iterator[Ask]:
    token = secrets.token_urlsafe(24)
    environ = {**os.environ, "OUTLIVE_DATABASE_URL": url, "OUTLIVE_DASHBOARD_TOKEN": token}
    words = [sys.executable, "-m", "outlive", "dashboard", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(dying_with_this(words), env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, _, port = process.stdout.readline().strip().rstrip("/").rpartition("/")[2].partition(":")
            yield Ask(host, int(port), token)
        finally:
            process.terminate()
