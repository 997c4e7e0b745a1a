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

from outlive.lab.bench.figures import Bound, Figure
from outlive.lab.bench.run import Run
from outlive.lab.bench.stock import Stock
from outlive.lab.program import dying_with_this

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
