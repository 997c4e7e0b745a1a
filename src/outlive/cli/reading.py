"""Commands that only look: jobs, show, killers, workers, stuck, stats, queues."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from outlive import store
from outlive.cli import screen
from outlive.cli.common import Desk, Json, Watch, app, command
from outlive.cli.life import innermost, life
from outlive.cli.screen import Column, Row, count_of, of, state_of, time_of
from outlive.errors import ConfigError, JobNotFound
from outlive.model import Attempt
from outlive.states import State

StateFilter = Annotated[State | None, typer.Option("--state", help="Only jobs of this state.")]
TaskFilter = Annotated[str | None, typer.Option("--task", help="Only jobs of this task.")]
QueueFilter = Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest first.")]

queues_app = typer.Typer(help="The queues: how much waits in each; pause and resume them.")
app.add_typer(queues_app, name="queues")


def tries(row: Row) -> Text:
    """How often it was tried, and how that went wrong."""
    wrong = [f"{row[name]}{name[0].upper()}" for name in ("failures", "crashes", "losses") if row[name]]
    text = Text(str(row["attempt"]), style="" if row["attempt"] else "dim")
    return text.append(f" ({' '.join(wrong)})", style="yellow") if wrong else text


def task_in_queue(row: Row) -> Text:
    text = Text(screen.plain(row["task"]))
    return text if row["queue"] == "default" else text.append(f" in {screen.plain(row['queue'])}", style="dim")


JOBS = (
    Column("job", of("id")),
    Column("task", task_in_queue, shrink="fold"),
    Column("state", state_of("state")),
    Column("tries", tries),
    Column("created", time_of("created_at"), luxury=True),
    Column("last error", of("error_message", "red"), shrink="cut", luxury=True),
)
STUCK = (
    Column("job", of("id")),
    Column("task", task_in_queue, shrink="fold"),
    Column("worker", of("locked_by"), shrink="fold"),
    Column("started", time_of("locked_at"), luxury=True),
    Column("silent for", lambda row: Text(screen.duration(row["time_since_heartbeat_s"]), style="red")),
)
_WORKER_STYLES = {"active": "green", "draining": "yellow", "stale": "yellow", "dead": "bold red", "stopped": "dim"}


def _worker_state(row: Row) -> Text:
    state = Text(row["state"], style=_WORKER_STYLES[row["state"]])
    return (
        state.append(f"\nbegins no job: {screen.plain(row['trouble'])}", style="bold red") if row["trouble"] else state
    )


WORKERS = (
    Column("worker", lambda row: Text(screen.plain(row["name"])).append(f"\n{row['id']}", style="dim")),
    Column("state", _worker_state, shrink="fold"),
    Column("where", lambda row: Text(screen.plain(f"{row['hostname']}, pid {row['pid']}")), shrink="fold", luxury=True),
    Column("running", lambda row: Text(f"{row['running']} of {row['slots']}"), "right"),
    Column("started", time_of("started_at"), luxury=True),
    Column("last seen", lambda row: Text(f"{screen.duration(max(0.0, row['time_since_heartbeat_s']))} ago")),
)
QUEUES = (
    Column("queue", of("name")),
    Column("state", lambda row: Text("paused", "yellow") if row["paused"] else Text("open", "green")),
    Column("waiting", count_of("waiting"), "right"),
    Column("ready", count_of("ready"), "right"),
    Column("running", count_of("running"), "right"),
    Column("blocked", count_of("blocked"), "right"),
    Column("quarantined", count_of("quarantined", "bold magenta"), "right"),
    Column("oldest ready", time_of("oldest_ready_at"), luxury=True),
)


@command(app)
def jobs(
    desk: Desk,
    state: StateFilter = None,
    task: TaskFilter = None,
    queue: QueueFilter = None,
    limit: Limit = 50,
    json: Json = False,
    watch: Watch = False,
) -> None:
    """List jobs, the newest first.

    Tries such as 5 (2F 1C 1L) are five, among them two failures, one crash and one loss.
    """
    statement = store.list_jobs(state=state, task=task, queue=queue, limit=limit)

    def show(rows: Sequence[Row]) -> RenderableType:
        return screen.table(JOBS, rows) if rows else Text("no job is like that", style="dim")

    screen.listing(lambda: desk.run(statement), show, json=json, watch=watch)


@command(app)
def show(
    desk: Desk, id: Annotated[UUID, typer.Argument(help="The job.")], json: Json = False, watch: Watch = False
) -> None:
    """Tell one job's whole life: every attempt, why it ended, and the evidence."""

    def look() -> tuple[dict[str, Any], list[Attempt]]:
        found = desk.run(store.job(id))
        if not found:
            raise JobNotFound(f"there is no job {id}: it was pruned, or it is of another database")
        return found[0], desk.run(store.list_attempts(id))

    screen.listing(look, lambda found: life(*found), json=json, watch=watch, shape=lambda found: _as_json(*found))


def _as_json(job: dict[str, Any], attempts: list[Attempt]) -> dict[str, object]:
    """The shape that others rely on."""
    first = ("id", "task", "queue", "source", "state", "args", "priority", "created_at", "ready_at")
    shape = {key: job[key] for key in (*first, "failures", "crashes", "losses")}
    shape |= {"args": msgspec.Raw(job["args"]), "progress": None}
    if job["progress_at"] is not None:
        progress = {key: job[key] for key in ("current", "total", "message")} | {"attempt": job["progress_attempt"]}
        checkpoint = job["checkpoint"] and msgspec.Raw(job["checkpoint"])
        shape["progress"] = progress | {"checkpoint": checkpoint, "updated_at": job["progress_at"]}
    shape["kills_by_others"] = job["kills"]
    evidence = [field for field in Attempt.__struct_fields__ if field != "result"]
    shape["attempts"] = [{field: getattr(attempt, field) for field in evidence} for attempt in attempts]
    shape["result"] = attempts[-1].result if attempts and job["state"] == State.SUCCEEDED else None
    return shape


def _murder(row: Row) -> Text:
    """What it died of the last time."""
    text = Text(screen.plain(row["details"] or "quarantined"), style="bold magenta")
    facts = [
        row["signal"] or (f"exit code {row['exit_code']}" if row["exit_code"] is not None else row["outcome"]),
        row["peak_memory_bytes"] and f"peak {screen.size(row['peak_memory_bytes'])}",
        row["cpu_s"] and f"cpu {screen.duration(row['cpu_s'])}",
    ]
    text.append("\n" + screen.plain(", ".join(str(fact) for fact in facts if fact)), style="not bold yellow")
    if row["error_message"]:
        text.append("\n" + screen.plain(screen.one_line(row["error_message"])), style="not bold red")
    return text


def _evidence(row: Row) -> Text:
    if row["stack"]:
        return Text(innermost(row["stack"], 5))
    return Text(screen.tail(row["output"] or "", 4), style="dim")


def _victim(row: Row) -> Text:
    text = Text(str(row["id"])).append(f"\n{screen.plain(row['task'])}", style="bold")
    text.append(f"\n{screen.moment(row['last_kill_at'] or row['quarantined_at'])}", style="dim")
    return text.append(f"\non {screen.plain(row['killed_on'])}", style="dim") if row["killed_on"] else text


KILLERS = (
    Column("job", _victim),
    Column("what it did", _murder, shrink="fold"),
    Column("its last words", _evidence, shrink="fold"),
)


@command(app)
def killers(desk: Desk, limit: Limit = 100, json: Json = False, watch: Watch = False) -> None:
    """List the jobs in quarantine, with the evidence: signal, peak memory, stack, output."""

    def show(rows: Sequence[Row]) -> RenderableType:
        if not rows:
            return Text("no job is in quarantine", style="green")
        hint = Text("`outlive show ID` tells all of it, `outlive release ID` lets it run again", style="dim")
        return Group(screen.table(KILLERS, rows, lines=True), hint)

    screen.listing(lambda: desk.run(store.list_killers(limit=limit)), show, json=json, watch=watch)


@command(app)
def workers(desk: Desk, limit: Limit = 1000, json: Json = False, watch: Watch = False) -> None:
    """List the workers, the living first: what they run, when they were last seen, and which have died."""

    def show(rows: Sequence[Row]) -> RenderableType:
        return screen.table(WORKERS, rows) if rows else Text("there was no worker lately", style="dim")

    screen.listing(lambda: desk.run(store.list_workers(limit=limit)), show, json=json, watch=watch)


@command(app)
def stuck(desk: Desk, limit: Limit = 100, json: Json = False, watch: Watch = False) -> None:
    """List running jobs whose worker has fallen silent; a reaper gives them to others."""

    def show(rows: Sequence[Row]) -> RenderableType:
        return screen.table(STUCK, rows) if rows else Text("no job is stuck", style="green")

    screen.listing(lambda: desk.run(store.list_stuck(limit=limit)), show, json=json, watch=watch)


@command(queues_app, how="callback")
def queues(desk: Desk, context: typer.Context, json: Json = False, watch: Watch = False) -> None:
    """The queues: how much waits in each; pause and resume them."""

    def show(rows: Sequence[Row]) -> RenderableType:
        return screen.table(QUEUES, rows) if rows else Text("no queue has a job", style="dim")

    if context.invoked_subcommand is None:
        screen.listing(lambda: desk.run(store.list_queues()), show, json=json, watch=watch)
    elif desk.chosen:
        raise ConfigError(f"put the options behind {context.invoked_subcommand}, not before it")


@command(app)
def stats(desk: Desk, json: Json = False, watch: Watch = False) -> None:
    """Count the jobs by state, queue and task. Counts every row: seconds on millions of jobs."""
    screen.listing(lambda: desk.run(store.stats()), _stats_table, json=json, watch=watch, shape=_counts)


def _counts(rows: Sequence[Row]) -> dict[str, object]:
    by: dict[str, Counter[str]] = {
        "state": Counter(dict.fromkeys(State, 0)),
        "queue": Counter(),
        "task": Counter(),
    }
    for row in rows:
        for key, counter in by.items():
            counter[row[key]] += row["jobs"]
    counts: dict[str, object] = {f"by_{key}": counter for key, counter in by.items()}
    return {"jobs": by["state"].total(), **counts, "counts": rows}


def _stats_table(rows: Sequence[Row]) -> RenderableType:
    """A line per queue and task, a column per state that any job has."""
    seen = [state for state in State if any(row["state"] == state for row in rows)]
    lanes: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        lanes.setdefault((row["queue"], row["task"]), Counter())[row["state"]] += row["jobs"]
    lines = [{"queue": queue, "task": task, **counts} for (queue, task), counts in sorted(lanes.items())]
    total: Counter[str] = sum(lanes.values(), Counter())
    columns = [Column("queue", of("queue")), Column("task", of("task"), shrink="fold")]
    columns += [
        Column(state, lambda row, state=state: Text(f"{row.get(state, 0):,}", "" if row.get(state) else "dim"), "right")  # type: ignore[misc]
        for state in seen
    ]
    if not rows:
        return Text("there are no jobs", style="dim")
    return screen.table(columns, [*lines, {"queue": "", "task": f"{total.total():,} jobs", **total}])
