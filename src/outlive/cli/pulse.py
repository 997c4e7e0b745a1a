"""The screen of `outlive stats --watch`: rates, latencies, workers, killers and sources, in 80 columns and 24 lines."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from outlive import store
from outlive.cli import screen
from outlive.cli.screen import Cell, Row, styled
from outlive.states import FINISHED, State

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from outlive.cli.command import CommandContext

SPARKS = "▁▂▃▄▅▆▇█"
KEPT = 60
WORKERS, KILLERS, SOURCES, QUEUES = 4, 3, 3, 3
"""How many of each are listed; the rest are counted."""
LISTED = 1000
LABEL = 12
NAME = 28
_TROUBLED = ("stale", "dead", "draining")


class Seen(msgspec.Struct, frozen=True):
    """The state of things at one moment."""

    at: datetime
    states: Counter[str]
    estimated: bool
    ended_per_s: dict[str, float]
    run_s: Sequence[float] | None
    wait_s: Sequence[float] | None
    queues: list[Row]
    workers: list[Row]
    killers: list[Row]
    sources: list[Row]


class Pulse:
    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._rates: deque[float] = deque(maxlen=KEPT)

    def look(self) -> Seen:
        run = self._context.run
        rows = run(store.stats())
        states: Counter[str] = Counter()
        for row in rows:
            states[row["state"]] += row["jobs"]
        ended_per_s = run(store.rates())
        [times] = run(store.latencies())
        self._rates.append(sum(ended_per_s.values()))
        queues, workers = run(store.list_queues()), run(store.list_workers(limit=LISTED))
        killers, sources = run(store.list_killers(limit=LISTED)), run(store.list_sources(limit=LISTED))
        return Seen(
            datetime.now().astimezone(),
            states,
            any(row["estimated"] for row in rows),
            ended_per_s,
            times["run_s"],
            times["wait_s"],
            sorted(queues, key=lambda row: (-row["ready"], row["name"])),
            [row for row in workers if row["state"] != "stopped"],
            list(killers),
            sorted(sources, key=lambda row: (row["breaker"] == "closed", row["name"])),
        )

    def line(self, seen: Seen) -> str:
        """Everything that matters on one line, for a pipe."""
        counts = " ".join(f"{state}={seen.states[state]}" for state in State)
        ended = f"ended_per_s={sum(seen.ended_per_s.values()):.1f}"
        times = [f"{name}_p50_s={some[0]:.3f}" for name, some in (("wait", seen.wait_s), ("run", seen.run_s)) if some]
        active = sum(row["state"] == "active" for row in seen.workers)
        return " ".join([seen.at.isoformat(timespec="seconds"), counts, ended, *times, f"workers={active}"])

    def draw(self, seen: Seen) -> RenderableType:
        from rich.console import Group

        head = styled("outlive", style="bold").append(f"  {seen.at:%H:%M:%S}   q or Ctrl-C ends", style="dim")
        lines = [
            head,
            *self._jobs(seen),
            *self._rates_of(seen),
            _times("wait", seen.wait_s),
            _times("run", seen.run_s),
            *_part("queues", seen.queues, QUEUES, _queue, "no queue has a job"),
            *_part("workers", _troubled_first(seen.workers), WORKERS, _worker, "no worker runs"),
            *_part("killers", seen.killers, KILLERS, _killer, "no job is in quarantine"),
            *_part("sources", seen.sources, SOURCES, _source, "no app has declared a source"),
        ]
        return Group(*map(_cut, lines))

    def _jobs(self, seen: Seen) -> list[Text]:
        lines = []
        for name, finished in (("jobs", False), ("", True)):
            line = _label(name)
            for state in (one for one in State if (one in FINISHED) is finished):
                rough = seen.estimated and seen.states[state] > 5000
                line.append(screen.number(seen.states[state], estimated=rough), "bold" if seen.states[state] else "dim")
                line.append_text(styled(" ").append_text(screen.state(state))).append("  ")
            lines.append(line)
        return lines

    def _rates_of(self, seen: Seen) -> list[Text]:
        total = sum(seen.ended_per_s.values())
        line = _label("rate").append(f"{total:.3g}/s", "bold" if total else "dim")
        most = max(self._rates)
        if most > 0:
            steps = (SPARKS[min(7, int(8 * rate / most))] if rate else " " for rate in self._rates)
            line.append("  ").append("".join(steps), "cyan")
        parts = [f"{per_s:.3g} {state}" for state, per_s in seen.ended_per_s.items()]
        return [line, _label("").append(", ".join(parts) or "no attempt has ended in the last minute", "dim")]


def _cut(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _label(name: str) -> Text:
    return styled(f"{name:<{LABEL}}", style="dim").append("", "default")


def _times(name: str, seconds: Sequence[float] | None) -> Text:
    line = _label(name)
    if not seconds:
        return line.append("–", "dim")
    for word, value in zip(("p50", "p95", "p99"), seconds, strict=True):
        line.append(f"{word} ", "dim").append(f"{screen.duration(max(0.0, value)):<10}", "not dim")
    return line


def _part(name: str, rows: Sequence[Row], most: int, draw: Cell, empty: str) -> list[Text]:
    """A heading with the number of things, and the first of them."""
    if not rows:
        return [_label(name).append(empty, "dim")]
    lines = [draw(row) for row in rows[:most]]
    lines[0] = _label(name).append_text(lines[0])
    more = f"{len(rows)} in all" if len(rows) > most else ""
    lines[1:] = [_label(more if n == 0 else "").append_text(line) for n, line in enumerate(lines[1:])]
    return lines


def _troubled_first(workers: Sequence[Row]) -> list[Row]:
    return sorted(workers, key=lambda row: (row["state"] == "dead", row["state"] not in _TROUBLED, row["name"]))


def _short(name: str) -> str:
    """A name that leaves room for what is said of it."""
    name = screen.plain(name)
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def _queue(row: Row) -> Text:
    text = styled(_short(row["name"])).append("  ")
    text.append(f"{screen.number(row['ready'], estimated=row['estimated'])} ready", "bold" if row["ready"] else "dim")
    text.append(f" of {screen.number(row['waiting'], estimated=row['estimated'])}, {row['running']:,} running", "dim")
    return text.append("  paused", "yellow") if row["paused"] else text


def _worker(row: Row) -> Text:
    text = styled(_short(row["name"])).append("  ")
    text.append(row["state"], screen.WORKER_STYLES[row["state"]])
    text.append(f"  {row['running']} of {screen.counted(row['slots'], 'slot')}, seen ", "dim")
    text.append(f"{screen.duration(max(0.0, row['time_since_heartbeat_s']))} ago", "dim")
    return text.append(f"  {screen.plain(screen.one_line(row['trouble']))}", "bold red") if row["trouble"] else text


def _killer(row: Row) -> Text:
    text = styled(f"{str(row['id'])[:13]}  ").append(_short(row["task"]))
    how = row["signal"] or row["outcome"] or ""
    return text.append(f"  {screen.plain(how)}", "bold magenta").append(
        f"  {screen.brief(row['quarantined_at'])}", "dim"
    )


def _source(row: Row) -> Text:
    text = styled(_short(row["name"])).append("  ")
    if row["enabled"]:
        text.append(row["breaker"], screen.BREAKER_STYLES[row["breaker"]])
    else:
        text.append("paused", "yellow")
    if row["tokens"] is not None:
        text.append(f"  {row['tokens']} of {row['burst']} tokens", "dim")
    return (
        text.append(f"  {screen.counted(row['failure_streak'], 'failure')}", "red") if row["failure_streak"] else text
    )
