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
from uuid import UUID

from outlive.temporary.program import dying_with_this
from outlive_lab.bench.figures import Bound, Figure
from outlive_lab.bench.run import Run
from outlive_lab.bench.stock import Stock

MUST_MS = 100
MUST_FILTER_MS = 200
LIVE = 100_000
BATCH = UUID(int=7)
TASKS = ("shop.fetch", "shop.parse", "shop.thumbnail", "mail.send")
PAGES = {
    "overview": "/",
    "overview of a week": "/?span=week",
    "jobs": "/jobs",
    "job": "/jobs/{id}",
    "tasks": "/tasks",
    "killers": "/killers",
    "workers": "/workers",
    "queues": "/queues",
    "sources": "/sources",
    "schedules": "/schedules",
    "batches": "/batches",
    "batch": f"/batches/{BATCH}",
    "audit": "/audit",
}
FILTERS = {
    "pending": "state=pending",
    "retryable": "state=retryable",
    "succeeded, the oldest first": "state=succeeded&sort=oldest",
    "cancelled": "state=cancelled",
    "suspended": "state=suspended",
    "a task": "task=mail.send",
    "a task, succeeded": "task=mail.send&state=succeeded",
    "a task, failed": "task=mail.send&state=failed",
    "a task with few jobs": "task=pdf.render",
    "a task with few jobs, failed": "task=pdf.render&state=failed",
    "a queue": "queue=bench",
    "a queue without jobs": "queue=nowhere",
    "a source without jobs": "source=nowhere",
    "a worker": "worker=worker-{n}",
    "a worker with few jobs": "worker=rare",
    "a worker, failed": "worker=worker-{n}&state=failed",
    "a worker, succeeded": "worker=worker-{n}&state=succeeded",
    "a worker, the last hour": "worker=worker-{n}&since=1h",
    "a worker and a task with few jobs": "worker=worker-{n}&task=pdf.render",
    "a batch": f"batch={BATCH}",
    "a batch, failed": f"batch={BATCH}&state=failed",
    "a batch and a task with few jobs": f"batch={BATCH}&task=pdf.render",
    "the last second": "since=1s",
    "a day, but not the last hour": "since=1d&before=1h",
    "a task, a queue, failed, in a day": "task=shop.fetch&queue=bench&state=failed&since=1d",
    "a text that no job has": "text=nowhere{n}",
    "a text that no failed job has": "text=nowhere{n}&state=failed",
    "an id": "text={id}",
    "the longest": "sort=longest&since={n}d",
    "the longest of a task": "sort=longest&task=mail.send&since={n}d",
    "the longest of a worker": "sort=longest&worker=worker-{n}",
    "failed ones by error": "sort=errors&since={n}d",
    "failed ones of a task by error": "sort=errors&task=mail.send&since={n}d",
}
"""Every filter of the jobs page, alone and combined, also where two jobs of a million match, or none. Pages keep the
answers of some for a while: these have another value (n) each time."""


def pages(run: Run) -> Iterator[Figure]:
    """Each page once to warm up, then as often as samples are taken, at least five times."""
    finished, waiting = run.sizes.finished, min(LIVE, run.sizes.backlog)
    stocks = [Stock(count=finished // len(TASKS), task=task, finished=True) for task in TASKS]
    stocks += [Stock(count=waiting // len(TASKS), task=task) for task in TASKS]
    stocks += [Stock(count=2, task="pdf.render", finished=True)]
    run.loaded.hold("pages", stocks)
    run.loaded.connection.execute(_SPREAD)
    run.loaded.connection.execute(_OTHERS)
    run.loaded.connection.execute(_RARE)
    run.loaded.connection.execute(_BATCH, [BATCH, LIVE])
    run.loaded.vacuum()
    (row,) = run.loaded.connection.execute("select id from outlive.jobs limit 1").fetchall()
    with dashboard(run.loaded.url) as ask:
        asked = [(f"page: {name}", path, MUST_MS) for name, path in PAGES.items()]
        asked += [(f"jobs: {name}", f"/jobs?{query}", MUST_FILTER_MS) for name, query in FILTERS.items()]
        for name, path, most_ms in asked:
            samples = [ask(path.format(id=row[0], n=n)) for n in range(1 + max(5, run.sizes.samples))]
            yield Figure("dashboard", name, "ms", samples[1:], bound=Bound("at most", most_ms))


_SPREAD = """
update outlive.attempts set worker_name = 'worker-' || token % 100,
  ended_at = ended_at - random() * interval '3 hours',
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
from numbered n where n.n > 800;
update outlive.held set why = 'suspended', step = 'sleep' where id in (select id from outlive.held limit 100)
"""
"""A hundred workers with eight running jobs each, a hundred killers, and as many jobs that sleep."""
_RARE = """
with retried as (
  update outlive.waiting set failures = 1, ready_at = now() + interval '1 hour'
  where id in (select id from outlive.waiting limit 2)),
renamed as (
  update outlive.attempts set worker_name = 'rare'
  where job_id in (select job_id from outlive.attempts where task = 'shop.parse' limit 2))
update outlive.attempts set state = 'failed', outcome = 'failed',
  error = 'ValueError: page ' || token || ' of https://example.org/' || md5(token::text) || ' has no title'
where task in ('shop.fetch', 'mail.send') and token % 30 = 0
"""
"""Two retryable jobs, two jobs of a worker that has run no others, and some thousands of failed ones."""
_BATCH = """
with batch as (
  insert into outlive.batches (id, name, created_at, closed_at, done_at, jobs, succeeded)
  select b.id, 'bench', now(), now(), now(), b.jobs, b.jobs from (values (%s::uuid, %s::bigint)) b(id, jobs)
  returning id, jobs)
update outlive.jobs j set batch = b.id
from batch b, lateral (select a.job_id from outlive.attempts a limit b.jobs) a where j.id = a.job_id
"""
"""One batch of a hundred thousand jobs."""


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
