"""What happens in the demo: coins come in, two workers look for their prices, and nothing goes as it should.

Everything is real: the workers are `outlive worker`, the sites answer over HTTP, the segfault, the memory, the hang and
the kill are what they say. Two things are done by us: a worker is killed, and one site is down for a while.
"""

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from uuid import UUID

from coins import catalog, site, tasks
from outlive import db, embedded, kernel, logs, migrate
from outlive.cli import screen
from outlive.config import Config
from outlive.lab.demo import example, show, verdict
from outlive.lab.demo.snapshot import Seen, look
from outlive.lab.demo.verdict import Breaker, Loss
from outlive.lab.worker_process import await_end, expect_alive, stopped_by_sigterm, worker

TARGET = "coins.tasks:app"
SLOTS = 4
COINS = 28
QUICK_COINS = 8
PATIENCE_S = 110.0
LOOK_S = 0.2
KILL_AT, KILL_AT_LAST = 0.3, 0.6
"""What part of the jobs is done when a worker with several is killed, and when one with a single job will do."""

WEAK = "dealer"
"""The site that is down for a while."""
DOWN_S = 2.0
"""How long it stays down after its breaker has opened."""


def main(*, json: bool, quick: bool) -> int:
    logs.configure(level=logging.WARNING)
    started = time.monotonic()
    with stopped_by_sigterm(), _home() as home, _server(home) as url, site.serve() as sites:
        tasks.app.configure(Config(database_url=url))
        try:
            with db.connect(url) as connection, show.audience(json=json) as audience:
                migrate.migrate(connection)
                stage = Stage(connection, home, url, sites, audience)
                stage.play(catalog.intakes(QUICK_COINS if quick else COINS))
            with db.connect(url) as connection:
                summary = verdict.summary(connection, stage.played())
                summary["seconds"] = round(time.monotonic() - started, 1)
                if json:
                    screen.print_json(summary)
                else:
                    show.evidence(connection)
                    show.summary(summary)
        finally:
            tasks.app.configure(None)
    return 0 if summary["right"] else 1


@contextmanager
def _home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="outlive-demo-", dir="/var/tmp"))
    home.chmod(0o755)  # As root the server runs as somebody else, who must get there.
    try:
        yield home
    finally:
        shutil.rmtree(home)


@contextmanager
def _server(home: Path) -> Iterator[str]:
    try:
        yield embedded.ensure(home / "server")
    finally:
        embedded.release(home / "server", wait_s=10.0)


class Stage:
    """The play: it looks, tells, and does the two things that are done by us."""

    def __init__(
        self, connection: db.Connection, home: Path, url: str, sites: dict[str, site.Site], audience: show.Audience
    ) -> None:
        self.connection, self.home, self.url, self.sites, self.audience = connection, home, url, sites, audience
        self.intakes: list[catalog.Intake] = []
        self.acknowledged: list[UUID] = []
        self.loss: Loss | None = None
        self.breaker = Breaker(WEAK)
        self._total = 0
        self._workers: list[Popen[bytes]] = []
        self._orphans: list[int] = []
        self._told: set[int] = set()
        self._was_open: set[str] = set()
        self._open_since: float | None = None

    def played(self) -> verdict.Played:
        requests = sum(one.requests for one in self.sites.values())
        return verdict.Played(self.intakes, self.acknowledged, self.sites, self.loss, self.breaker, requests)

    def play(self, intakes: list[catalog.Intake]) -> None:
        self.intakes = intakes
        self._total = sum(verdict.expected_jobs(intakes).values())
        self.audience.say(f"two workers with {SLOTS} slots each are started: every job runs in a process of its own")
        with ExitStack() as stack:
            stack.callback(lambda: await_end(self._orphans))
            for _ in range(2):
                self._start(stack)
            self.acknowledged = [job.id for job in tasks.app.enqueue_many(tasks.collect.job(one) for one in intakes)]
            self.audience.say(f"{len(intakes)} coins come in: each is acknowledged, and searched for on three sites")
            deadline = time.monotonic() + PATIENCE_S
            while True:
                seen = look(self.connection)
                self.audience.see(seen, self._total)
                self._tell(seen)
                self._trouble(seen)
                self._kill(seen, stack)
                if self._is_over(seen) or time.monotonic() > deadline:
                    break
                for process in self._workers:
                    expect_alive(process, self.home)
                time.sleep(LOOK_S)

    def _is_over(self, seen: Seen) -> bool:
        """All jobs are done. The successor of a worker that was killed may come after that."""
        known = self.loss is None or (self.loss.noticed_s is not None and self.loss.replaced_s is not None)
        return known and not seen.unfinished and seen.settled() >= len(self.intakes)

    def _start(self, stack: ExitStack) -> "Popen[bytes]":
        more = {
            "PYTHONPATH": str(example.folder()),
            "COINS_SITES": site.places(self.sites),
            "OUTLIVE_CACHE_DIR": str(self.home / "cache"),
        }
        started = worker(TARGET, url=self.url, slots=SLOTS, directory=self.home, more=more)
        process = stack.enter_context(started)
        self._workers.append(process)
        return process

    def _tell(self, seen: Seen) -> None:
        """Each attempt that ended badly, and each breaker that has opened or closed, once."""
        for bad in seen.bad:
            if bad.token not in self._told:
                self._told.add(bad.token)
                self.audience.say(show.ending(bad))
        now_open = {row["name"] for row in seen.sources if row["breaker"] != "closed"}
        for name in sorted(now_open - self._was_open):
            self.audience.say(show.breaker(name, opened=True))
        for name in sorted(self._was_open - now_open):
            self.audience.say(show.breaker(name, opened=False))
        self.breaker.opened += WEAK in now_open - self._was_open
        self.breaker.closed += WEAK in self._was_open - now_open
        self._was_open = now_open

    def _trouble(self, seen: Seen) -> None:
        """One site is down from its first good answer on, until its breaker has been open for a moment."""
        weak, row = self.sites[WEAK], seen.source(WEAK)
        if row is None or row["last_success_at"] is None or (not weak.down and self.breaker.opened):
            return
        if not weak.down:
            weak.down = True
            self.audience.say(f"the {WEAK} is down: it answers 503")
        elif self.breaker.opened:
            self._open_since = self._open_since or time.monotonic()
            if time.monotonic() - self._open_since >= DOWN_S:
                weak.down = False
                self.audience.say(f"the {WEAK} is up again, and one job will be the probe")

    def _kill(self, seen: Seen, stack: ExitStack) -> None:
        """SIGKILL the first worker while it has jobs, start another as systemd would, and see when that is noticed."""
        if self.loss is None:
            victim = self._workers[0]
            row, part = seen.worker(victim.pid), seen.settled() / self._total
            if row is None or part < KILL_AT or row["running"] < (2 if part < KILL_AT_LAST else 1):
                return
            [(now,)] = self.connection.execute("select clock_timestamp()").fetchall()
            self._orphans = kernel.descendants_of(victim.pid)
            victim.kill()
            victim.wait()
            self._workers.remove(victim)
            self.loss = Loss(victim.pid, now, row["running"], self._start(stack).pid)
            self.audience.say(show.killing(victim.pid, row["running"]))
            return
        self.loss.look(seen, self.audience.say)
