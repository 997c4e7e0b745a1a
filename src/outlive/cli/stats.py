"""stats: counts the jobs, and with --watch shows live what happens: rates, latencies, workers, killers, sources."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, Watch, app, command
from outlive.cli.screen import Column, Drawn, Listing, Part, Row, Text, count_of, of, text, time_of
from outlive.humanize import brief, counted, duration, number, one_line, plain, rate
from outlive.operations import facts
from outlive.statement import Statement
from outlive.states import OVER, State

SPARKS = "▁▂▃▄▅▆▇█"
KEPT = 60
LISTED = 1000
LABEL, NAME = 12, 28
"""The width of a label, and the longest name."""
WORKERS, OTHERS = 4, 3
"""How many workers, and how many queues, killers and sources are listed; the rest are counted."""

LANES = (
    Column("queue", of("queue")),
    Column("source", of("source")),
    Column("task", of("task"), shrink="fold"),
    Column("priority", of("priority"), "right"),
    Column("waiting", count_of("waiting", "", zero="", rough="estimated"), "right"),
    Column("ready", count_of("ready", "", zero="", rough="ready_estimated"), "right"),
    Column("oldest ready", time_of("oldest_ready_at"), wide=True),
)


@command(app, example="stats --watch")
def stats(
    context: CommandContext,
    lanes: Annotated[bool, typer.Option("--lanes", help="Count the waiting jobs by lane, the fullest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many lanes at most.")] = 100,
    json: Json = False,
    watch: Watch = False,
) -> None:
    """Count the jobs by state, queue and task. More than 10,000 of a lane are estimated, and marked with ≈.

    With --watch it shows live how fast jobs end and how long they wait and run, the workers, killers and sources.
    """

    def look() -> Counts:
        ended_per_s = context.run(store.rates())
        if not json:
            screen.draw_soon()  # The server counts meanwhile.
        rows = context.run(store.count_jobs())
        return Counts(rows, ended_per_s)

    if lanes:
        context.rows(store.list_lanes(limit=limit), LANES, "no job waits").print(json=json, watch=watch)
    elif watch and not json:
        pulse = Pulse(context.run)
        Listing(pulse.look, pulse.draw, line=pulse.line).print(json=False, watch=True)
    else:
        Listing(look, _table, Counts.as_json).print(json=json, watch=watch)


class Counts(NamedTuple):
    """The jobs of each state, queue and task, and how many attempts end per second, by state."""

    rows: Sequence[Row]
    ended_per_s: Mapping[str, float]

    def by(self, *keys: str) -> Counter[Any]:
        counts: Counter[Any] = Counter()
        for row in self.rows:
            counts[itemgetter(*keys)(row)] += row["jobs"]
        return counts

    def estimated(self, *keys: str) -> set[Any]:
        """What of these keys has an estimated count."""
        return {itemgetter(*keys)(row) for row in self.rows if row["estimated"]}

    def ended(self) -> str:
        return ", ".join(f"{rate(per_s)} {state}" for state, per_s in self.ended_per_s.items())

    def as_json(self) -> dict[str, object]:
        states, rough = self.by("state"), self.estimated("state", "queue", "task")
        return {
            "jobs": states.total(),
            "by_state": {state: states[state] for state in State},
            "by_queue": self.by("queue"),
            "by_task": self.by("task"),
            "counts": [
                {"state": lane[0], "queue": lane[1], "task": lane[2], "jobs": jobs, "estimated": lane in rough}
                for lane, jobs in self.by("state", "queue", "task").items()
            ],
            "estimated": {
                "jobs": bool(rough),
                **{f"by_{key}": sorted(self.estimated(key)) for key in ("state", "queue", "task")},
            },
            "ended_per_s": self.ended_per_s,
        }


def _table(counts: Counts) -> Drawn:
    """A row for each queue and task, a column for each state that occurs."""
    if not counts.rows:
        return "there are no jobs"
    rough, total, cells = counts.estimated("state"), counts.by("state"), counts.by("queue", "task", "state")
    rough_cells = counts.estimated("queue", "task", "state")
    lanes = sorted({(queue, task) for queue, task, _ in cells})
    lines = [
        {
            "queue": queue,
            "task": task,
            **{state: cells[queue, task, state] for state in total},
            "estimated": {state for state in total if (queue, task, state) in rough_cells},
        }
        for queue, task in lanes
    ]
    whole = f"{number(total.total(), estimated=bool(rough))} jobs"
    lines += [{"queue": "", "task": whole, **total, "estimated": rough}]
    columns = [Column("queue", of("queue")), Column("task", of("task"), shrink="fold")]
    rarity = {state: place for place, (state, _) in enumerate(total.most_common(), start=1)}
    for state in (one for one in State if one in total):
        columns.append(Column(state, _cell(state), "right", spare=rarity[state]))
    fitting = {one.title for one in screen.fitting(columns, lines)}
    hidden = [one.title for one in columns if one.title not in fitting]
    missing = ", ".join(f"{number(total[state], estimated=state in rough)} {state}" for state in hidden)
    notes = (
        f"no room for columns of {missing}" if missing else "",
        "≈ is estimated from a sample of the jobs" if rough else "",
        f"attempts that ended per second lately: {counts.ended()}" if counts.ended_per_s else "",
    )
    return screen.stacked(screen.table(columns, lines), *(text((note, "dim")) for note in notes if note))


def _cell(state: str) -> screen.Cell:
    return lambda row: text((number(row[state], estimated=state in row["estimated"]), "" if row[state] else "dim"))


class Seen(NamedTuple):
    """The state of things at one moment."""

    at: datetime
    counts: Counts
    run_s: Sequence[float] | None
    wait_s: Sequence[float] | None
    queues: Sequence[Row]
    workers: Sequence[Row]
    killers: Sequence[Row]
    sources: Sequence[Row]


class Pulse:
    """The screen of `outlive stats --watch`, in 80 columns and 24 lines."""

    def __init__(self, run: Callable[[Statement[Any]], Any]) -> None:
        self._run = run
        self._rates: deque[float] = deque(maxlen=KEPT)

    def look(self) -> Seen:
        run = self._run
        counts = Counts(run(store.count_jobs()), run(store.rates()))
        self._rates.append(sum(counts.ended_per_s.values()))
        [times] = run(store.latencies())
        workers = [row for row in run(store.list_workers(limit=LISTED)) if row["state"] != "stopped"]
        return Seen(
            datetime.now().astimezone(),
            counts,
            times["run_s"],
            times["wait_s"],
            sorted(run(store.list_queues()), key=lambda row: (-row["ready"], row["name"])),
            sorted(workers, key=lambda row: (row["state"] == "dead", row["state"] == "active", row["name"])),
            run(store.list_killers(limit=LISTED)),
            sorted(run(store.list_sources(limit=LISTED)), key=lambda row: (row["breaker"] == "closed", row["name"])),
        )

    def line(self, seen: Seen) -> str:
        """Everything that matters on one line, for a pipe. A count after ≈ is an estimate."""
        states, rough = seen.counts.by("state"), seen.counts.estimated("state")
        times = [f"{name}_p50_s={some[0]:.3f}" for name, some in (("wait", seen.wait_s), ("run", seen.run_s)) if some]
        words = [
            seen.at.isoformat(timespec="seconds"),
            *(f"{state}{'≈' if state in rough else '='}{states[state]}" for state in State),
        ]
        words += [f"ended_per_s={self._rates[-1]:.3g}", *times]
        return " ".join([*words, f"workers={sum(row['state'] == 'active' for row in seen.workers)}"])

    def draw(self, seen: Seen) -> Drawn:
        lines = [
            text(("outlive", "bold"), (f"  {seen.at:%H:%M:%S %Z}   q or Ctrl-C ends", "dim")),
            _states("jobs", seen.counts, [state for state in State if state not in OVER]),
            _states("", seen.counts, [state for state in State if state in OVER]),
            self._rate(),
            _line("", (seen.counts.ended() or "no attempt has ended in the last minute", "dim")),
            _times("wait", seen.wait_s),
            _times("run", seen.run_s),
            *_part("queues", seen.queues, _queue, "no queue is known yet"),
            *_part("workers", seen.workers, _worker, "no worker runs", most=WORKERS),
            *_part("killers", seen.killers, _killer, "no job is in quarantine"),
            *_part("sources", seen.sources, _source, "no app has declared a source"),
        ]
        return screen.stacked(*map(screen.cut, lines))

    def _rate(self) -> Text:
        last, most = self._rates[-1], max(self._rates)
        steps = (SPARKS[min(7, int(8 * rate / most))] if rate else " " for rate in self._rates)
        return _line("rate", (f"{rate(last)}/s", _bold(last)), ("  " + "".join(steps) if most > 0 else "", "cyan"))


def _line(label: str, *parts: Part) -> Text:
    return text((f"{label:<{LABEL}}", "dim"), *parts)


def _bold(count: float) -> str:
    return "bold" if count else "dim"


def _states(label: str, counts: Counts, states: Sequence[State]) -> Text:
    rough, jobs = counts.estimated("state"), counts.by("state")
    parts: list[Part] = []
    for state in states:
        count = number(jobs[state], estimated=state in rough)
        parts += [(count, _bold(jobs[state])), " ", screen.state(state), "  "]
    return _line(label, *parts)


def _times(label: str, seconds: Sequence[float] | None) -> Text:
    if not seconds:
        return _line(label, ("–", "dim"))
    each = zip(("p50", "p95", "p99"), seconds, strict=True)
    return _line(label, *(part for word, s in each for part in ((f"{word} ", "dim"), f"{duration(max(0.0, s)):<10}")))


def _part(
    label: str, rows: Sequence[Row], parts: Callable[[Row], list[Part]], empty: str, *, most: int = OTHERS
) -> list[Text]:
    """The first of these things, and how many there are."""
    if not rows:
        return [_line(label, (empty, "dim"))]
    labels = [label, f"{len(rows)} in all" if len(rows) > most else "", *[""] * most]
    return [_line(labels[n], *parts(row)) for n, row in enumerate(rows[:most])]


def _short(name: str) -> str:
    """A name that leaves room for what follows it."""
    name = plain(name)
    return (name if len(name) <= NAME else f"{name[: NAME - 1]}…") + "  "


def _queue(row: Row) -> list[Part]:
    ready = number(row["ready"], estimated=row["ready_estimated"])
    waiting = number(row["waiting"], estimated=row["estimated"])
    rest = f" of {waiting}, {row['running']:,} running"
    paused = ("  paused" if row["paused"] else "", "yellow")
    return [_short(row["name"]), (f"{ready} ready", _bold(row["ready"])), (rest, "dim"), paused]


def _worker(row: Row) -> list[Part]:
    busy = f"  {facts.busy(row)} busy, seen {screen.seen(row)}"
    trouble = (f"  {one_line(row['trouble'])}" if row["trouble"] else "", "bold red")
    return [_short(row["name"]), (row["state"], screen.WORKER_STYLES[row["state"]]), (busy, "dim"), trouble]


def _killer(row: Row) -> list[Part]:
    how = (row["signal"] or row["outcome"] or "", "bold magenta")
    return [f"{str(row['id'])[:13]}  ", _short(row["task"]), how, (f"  {brief(row['quarantined_at'])}", "dim")]


def _source(row: Row) -> list[Part]:
    breaker = (row["breaker"], screen.BREAKER_STYLES[row["breaker"]]) if row["enabled"] else ("paused", "yellow")
    tokens = "" if row["tokens"] is None else f"  {row['tokens']} of {row['burst']} tokens"
    failures = f"  {counted(row['failure_streak'], 'failure')}" if row["failure_streak"] else ""
    return [_short(row["name"]), breaker, (tokens, "dim"), (failures, "red")]
