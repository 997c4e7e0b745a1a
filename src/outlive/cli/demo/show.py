"""The output of the demo: events as lines, on a terminal above the live statistics; the evidence and the summary."""

import sys
from collections.abc import Mapping
from typing import Any

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table

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
        self.live = Live(console=screen.console(), auto_refresh=False) if sys.stdout.isatty() and not json else None
        self._step = 0

    def say(self, *words: screen.Part, routine: bool = False) -> None:
        if self.live and not routine:
            self.live.console.print(screen.cut(text(*words)))
        elif not self.live and not self._silent:
            screen.say(*words)

    def see(self, seen: Snapshot, total: int) -> None:
        done, step = seen.finished(), STEPS * seen.finished() // max(1, total)
        if self.live:
            bar = Table.grid(padding=(0, 1))
            bar.add_row(f"{done} of {total} jobs  ", ProgressBar(total=max(1, total), completed=done, width=50))
            title = Rule("outlive: coin prices, while things go wrong")
            self.live.update(screen.stacked(title, bar, self._pulse.draw(self._pulse.look())), refresh=True)
        elif step > self._step:
            self._step = step
            self.say(f"{done} of {total} jobs are done")

    def report(self, row: Row) -> None:
        """An attempt that did not succeed. One that is simply retried is routine."""
        held = row["state"] == State.QUARANTINED
        error = f" ({one_line(row['error'])})" if row["error"] and row["outcome"] != Outcome.LOST else ""
        words = f"{row['job']}, attempt {row['attempt']}: ", screen.state(row["outcome"]), (error, "dim")
        routine = row["outcome"] in (Outcome.FAILED, Outcome.LOST) and not held
        self.say(*words, (", in quarantine" if held else "", "bold magenta"), routine=routine)


def ending(connection: db.Connection, found: Mapping[str, Any], *, json: bool, keep: bool) -> None:
    """What the demo has found: the jobs in quarantine with their last attempts, and the summary."""
    if json:
        screen.print_json(found)
        return
    out = screen.console()
    out.print(Rule("in quarantine, with the evidence"))
    for row in db.run(connection, store.list_killers()):
        name = f"{row['task'].rpartition('.')[2]} {row['source']}"
        head = text((name, "bold"), (f"  {row['id']}  ", "dim"), (row["details"] or "", "magenta"))
        bad = [one for one in db.run(connection, store.list_attempts(row["id"])) if one.outcome == row["outcome"]]
        out.print(head, *evidence_of(bad[-1]), text(), sep="\n")
    out.print(Rule("summary"))
    for name, value in found.items():
        if name not in ("right", "wrong"):
            screen.say((f"{name.replace('_', ' '):<20}", "dim"), (_in_words(name, value), "bold"))
    for words in found["wrong"]:
        screen.say((f"wrong: {words}", "bold red"))
    if found["right"]:
        screen.say(("checked against the database: every job and every price is as it must be", "bold green"))
    if not keep:
        screen.say(("`outlive demo --keep` keeps all this until Ctrl-C, and shows it on a dashboard", "dim"))


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
