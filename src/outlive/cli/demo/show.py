"""The output of the demo: events as lines, on a terminal above the live statistics; the evidence and the summary."""

import sys
from collections.abc import Mapping
from typing import Any

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outlive import db, store
from outlive.cli import screen
from outlive.cli.demo.verdict import Snapshot
from outlive.cli.screen import Row, text
from outlive.cli.show import evidence_of
from outlive.cli.stats import Pulse
from outlive.humanize import one_line
from outlive.states import Outcome, State

STEPS = 10


class Audience:
    """Prints what happens. On a terminal, the screen of `outlive stats --watch` changes below the events, and counts
    those that are routine. Elsewhere, a line says how far the work is. With --json only the summary is printed.
    """

    def __init__(self, connection: db.Connection, *, json: bool) -> None:
        self._silent = json
        self._pulse = Pulse(lambda statement: db.run(connection, statement))
        self._live = Live(console=screen.console(), auto_refresh=False) if sys.stdout.isatty() and not json else None
        self._step = 0

    def __enter__(self) -> "Audience":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, *words: screen.Part, routine: bool = False) -> None:
        if self._live and not routine:
            self._live.console.print(screen.cut(text(*words)))
        elif not self._live and not self._silent:
            screen.say(*words)

    def see(self, seen: Snapshot, total: int) -> None:
        done, step = seen.finished(), STEPS * seen.finished() // max(1, total)
        if self._live:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(f"{done} of {total} jobs  ", ProgressBar(total=max(1, total), completed=done, width=50))
            title = Rule("outlive: coin prices, while things go wrong")
            self._live.update(screen.stacked(title, bar, self._pulse.draw(self._pulse.look())), refresh=True)
        elif step > self._step:
            self._step = step
            self.say(f"{done} of {total} jobs are done")


def bad_end(row: Row) -> Text:
    """A line about an attempt that did not succeed."""
    error = f" ({one_line(row['error'])})" if row["error"] and row["outcome"] != Outcome.LOST else ""
    held = ", in quarantine" if row["state"] == State.QUARANTINED else ""
    job = f"{row['job']}, attempt {row['attempt']}: "
    return text(job, screen.state(row["outcome"]), (error, "dim"), (held, "bold magenta"))


def is_routine(row: Row) -> bool:
    """Whether it is a failure that is simply retried."""
    return row["outcome"] in (Outcome.FAILED, Outcome.LOST) and row["state"] != State.QUARANTINED


def breaker(name: str, *, opened: bool) -> Text:
    words = "opens: its jobs wait, and other jobs go on" if opened else "closes: the probe was answered"
    return text(f"the breaker of {name} ", (words, "bold red" if opened else "green"))


def kill(pid: int, jobs: int) -> Text:
    return text((f"kill -9 {pid}", "bold red"), f": a worker that runs {jobs} jobs")


def ending(connection: db.Connection, found: Mapping[str, Any], *, json: bool, keep: bool) -> None:
    """What the demo has found, and where to see more of it."""
    if json:
        screen.print_json(found)
        return
    evidence(connection)
    summary(found)
    if not keep:
        screen.say(("`outlive demo --keep` keeps all this until Ctrl-C, and shows it on a dashboard", "dim"))


def link(line: str) -> None:
    """The address of the dashboard. Standard output may be read by a program."""
    print(f"everything stays until Ctrl-C; see what happened, or release a killer:\n{line}", file=sys.stderr)


def evidence(connection: db.Connection) -> None:
    """The jobs in quarantine, with their last attempts."""
    out = screen.console()
    out.print(Rule("in quarantine, with the evidence"))
    for row in db.run(connection, store.list_killers()):
        name = f"{row['task'].rpartition('.')[2]} {row['source']}"
        head = text((name, "bold"), (f"  {row['id']}  ", "dim"), (row["details"] or "", "magenta"))
        bad = [one for one in db.run(connection, store.list_attempts(row["id"])) if one.outcome == row["outcome"]]
        out.print(head, *evidence_of(bad[-1]), Text(), sep="\n")


def summary(found: Mapping[str, Any]) -> None:
    screen.console().print(Rule("summary"))
    for name, value in found.items():
        if name not in ("right", "wrong"):
            screen.say((f"{name.replace('_', ' '):<20}", "dim"), (_in_words(name, value), "bold"))
    for words in found["wrong"]:
        screen.say((f"wrong: {words}", "bold red"))
    if found["right"]:
        screen.say(("checked against the database: every job and every price is as it must be", "bold green"))


def _in_words(name: str, value: Any) -> object:
    match name:
        case "quarantined":
            jobs = [(one["task"].rpartition(".")[2], one) for one in value]
            return ", ".join(f"{task} {one['source']} ({one['outcome']}, {one['signal']})" for task, one in jobs)
        case "workers_lost":
            words = "1 with {jobs} running, noticed in {noticed_s} s, replaced in {replaced_s} s"
            return ", ".join(words.format(**one) for one in value)
        case "breaker":
            return "{source}: opened {opened}, closed {closed}".format(**value)
    return value
