"""What happens in the demo: coins come in, two workers search for their prices, and many things go wrong.

Everything is real: the workers are `outlive worker`, the sites answer over HTTP, and jobs segfault, eat memory and
hang. The demo itself does two things: it kills a worker, and it takes one site down for a while.
"""

import signal
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

from coins import catalog, expected, site, tasks
from outlive import db, linux, logs, migrate
from outlive.cli.demo import example, show, verdict
from outlive.cli.demo.verdict import Loss, Played, Snapshot
from outlive.config import Config
from outlive.temporary.program import Program, await_end, stopped_by_sigterm, worker
from outlive.temporary.server import temporary_home, temporary_server

TARGET = "coins.tasks:app"
SLOTS = 4
COINS = 28
QUICK_COINS = 8
PATIENCE_S = 110.0
POLL_S = 0.2
KILL_AT, KILL_AT_LAST = 0.3, 0.6
"""The part of the jobs that is done when a worker with two jobs is killed, and when one job is enough."""

WEAK = "dealer"
"""The site that is down for a while."""
DOWN_S = 2.0
"""How long it stays down after its breaker opened."""
SETTLE_S = 0.5

_RUNNING = """
select clock_timestamp(), count(*)
from outlive.running r join outlive.workers k on k.id = r.worker where k.pid = %s
"""


def main(*, json: bool, quick: bool, keep: bool) -> int:
    logs.configure(level="WARNING")
    started = time.monotonic()
    with stopped_by_sigterm(), temporary_home("demo") as home, temporary_server(home) as url, site.serve() as sites:
        tasks.app.configure(Config(database_url=url))
        try:
            with ExitStack() as workers:
                with db.connect(url) as connection:
                    migrate.migrate(connection)
                    played = Played(catalog.intakes(QUICK_COINS if quick else COINS), sites, WEAK)
                    audience = show.Audience(connection, json=json)
                    with audience.live or nullcontext():
                        Play(connection, home, url, played, audience).run(workers)
                if not keep:
                    workers.close()
                with db.connect(url) as connection:
                    summary = verdict.summary(connection, played)
                    summary["seconds"] = round(time.monotonic() - started, 1)
                    show.ending(connection, summary, json=json, keep=keep)
                if keep:
                    _serve_dashboard(url)
        finally:
            tasks.app.configure(None)
    return 0 if summary["right"] else 1


def _serve_dashboard(url: str) -> None:
    """Show what has happened in a browser, until Ctrl-C or SIGTERM. Its port is free for sure."""
    from outlive.dashboard.serving import serve  # Not at the top: it needs an extra.

    def link(line: str) -> None:  # Standard output may be read by a program.
        print(f"everything stays until Ctrl-C; see what happened, or release a killer:\n{line}", file=sys.stderr)

    with stopped_by_sigterm():  # The dashboard leaves no handler of its own behind.
        serve(Config(database_url=url, dashboard_listen="127.0.0.1:0"), link)


class Play:
    def __init__(
        self, connection: db.Connection, home: Path, url: str, played: Played, audience: show.Audience
    ) -> None:
        self.connection, self.home, self.url, self.played, self.audience = connection, home, url, played, audience
        self._total = expected.jobs(played.intakes).total()
        self._workers: list[Program] = []
        self._orphans: list[int] = []
        self._reported: set[int] = set()
        self._open: set[str] = set()
        """The sources whose breakers were open in the last snapshot."""
        self._open_since: float | None = None

    def run(self, stack: ExitStack) -> None:
        """Play until every job is done. The workers run until the stack is closed."""
        self.audience.say(f"two workers with {SLOTS} slots each start: every job runs in its own process")
        stack.callback(lambda: await_end(self._orphans))
        for _ in range(2):
            self._start(stack)
        intakes = self.played.intakes
        self.played.acknowledged = [job.id for job in tasks.app.enqueue_many(tasks.collect.job(one) for one in intakes)]
        self.audience.say(f"{len(intakes)} coins come in: each is acknowledged, and searched for on three sites")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen = verdict.look(self.connection)
            self.audience.see(seen, self._total)
            self._report(seen)
            self._take_site_down(seen)
            self._kill_worker(seen, stack)
            if self._is_over(seen) or time.monotonic() > deadline:
                break
            for program in self._workers:
                program.expect_alive()
            time.sleep(POLL_S)

    def _is_over(self, seen: Snapshot) -> bool:
        """All jobs are done. The successor of the killed worker may register after that."""
        loss = self.played.loss
        known = loss is None or (loss.noticed_s is not None and loss.replaced_s is not None)
        return known and len(self.played.intakes) <= seen.finished() == seen.states.total()

    def _start(self, stack: ExitStack) -> Program:
        more = {"PYTHONPATH": str(example()), "COINS_SITES": site.places(self.played.sites)}
        more["OUTLIVE_CACHE_DIR"] = str(self.home / "cache")
        program = stack.enter_context(worker(TARGET, url=self.url, slots=SLOTS, directory=self.home, more=more))
        self._workers.append(program)
        return program

    def _report(self, seen: Snapshot) -> None:
        """Report each bad end, and each breaker that opens or closes, once."""
        for row in seen.bad_ends():
            if row["token"] not in self._reported:
                self._reported.add(row["token"])
                self.audience.report(row)
        now_open = {row["name"] for row in seen.sources if row["breaker"] != "closed"}
        for name in sorted(now_open ^ self._open):
            opens = name in now_open
            words = "opens: its jobs wait, and other jobs go on" if opens else "closes: the probe was answered"
            self.audience.say(f"the breaker of {name} ", (words, "bold red" if opens else "green"))
        self.played.opened += WEAK in now_open - self._open
        self.played.closed += WEAK in self._open - now_open
        self._open = now_open

    def _take_site_down(self, seen: Snapshot) -> None:
        """One site is down from its first success until its breaker has been open for a moment."""
        weak = self.played.sites[WEAK]
        answered = any(row["name"] == WEAK and row["last_success_at"] is not None for row in seen.sources)
        if answered and not weak.down and not self.played.opened:
            weak.down = True
            self.audience.say(f"the {WEAK} is down: it answers 503")
        elif weak.down and self.played.opened:
            self._open_since = self._open_since or time.monotonic()
            if time.monotonic() - self._open_since >= DOWN_S:
                weak.down = False
                self.audience.say(f"the {WEAK} is up again, and one job will be the probe")

    def _kill_worker(self, seen: Snapshot, stack: ExitStack) -> None:
        """SIGKILL the first worker while it runs jobs, and start another one as systemd would."""
        if self.played.loss is not None:
            self.played.loss.update(seen, self.audience.say)
            return
        victim = self._workers[0].process
        row, part = seen.worker(victim.pid), seen.finished() / self._total
        if row is None or part < KILL_AT or row["running"] < (2 if part < KILL_AT_LAST else 1):
            return
        victim.send_signal(signal.SIGSTOP)  # From here on it ends no job; those that it has just ended may be written.
        time.sleep(SETTLE_S)
        [(now, jobs)] = self.connection.execute(_RUNNING, [victim.pid]).fetchall()
        if not jobs:
            victim.send_signal(signal.SIGCONT)
            return
        self._orphans = linux.descendants_of(victim.pid)
        victim.kill()
        victim.wait()
        del self._workers[0]
        self.played.loss = Loss(victim.pid, now, jobs, self._start(stack).process.pid)
        self.audience.say((f"kill -9 {victim.pid}", "bold red"), f": a worker that runs {jobs} jobs")
