"""The overview: what needs attention, how many jobs there are, and the last hour, day or week in charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from outlive import store
from outlive.dashboard import charts
from outlive.dashboard.answers import MOST_LANES, SPANS, Answers, Course
from outlive.dashboard.rendering import seconds
from outlive.dashboard.visits import Visit
from outlive.humanize import number
from outlive.operations import findings, selection
from outlive.states import Outcome, State
from outlive.store.charts import SAMPLE

if TYPE_CHECKING:
    from outlive.dashboard.site import Site

FEW = 5
PATIENCE_S = 0.005  # For failed jobs. Counting the first thousand takes some milliseconds.
OUTCOMES = [
    Outcome.SUCCEEDED,
    Outcome.RELEASED,
    Outcome.CANCELLED,
    Outcome.FAILED,
    Outcome.TIMED_OUT,
    Outcome.LOST,
    Outcome.OUT_OF_MEMORY,
    Outcome.CRASHED,
]
"""From the bottom of a bar to its top."""
DEATHS = (Outcome.CRASHED, Outcome.OUT_OF_MEMORY, Outcome.LOST)
PERCENTILES = ("p50", "p95", "p99")


async def look(site: Site, visit: Visit) -> Mapping[str, Any]:
    run = site.database.run
    span = given if (given := visit.get("span")) in SPANS else "hour"
    course = site.answers.courses[span]
    await course.refresh()
    if not site.answers.depths:
        await site.answers.note_depth()
    counts = await site.answers.ask(store.count_jobs())
    workers = await run(store.list_workers())
    killers = await run(store.list_killers(limit=FEW))
    stuck = await run(store.list_stuck(limit=FEW))
    lanes = await site.answers.ask(store.list_lanes(limit=MOST_LANES))
    unserved = await site.answers.ask(store.unserved_lanes())
    queues = await site.answers.ask(store.list_queues())
    sources = await run(store.list_sources())
    schedules = await run(store.list_schedules())
    by_state, rough = tally(counts)
    dead = [row for row in workers if findings.has_died(row, within_s=findings.HOUR_S)]
    active = [row for row in workers if row["state"] == "active"]
    health = {
        "stuck": await run(store.count_stuck()),
        "quarantined": by_state["quarantined"],
        "unmet": await run(store.count_unmet()),
        "active_workers": len(active),
    }
    lately = store.JobFilter(states=(State.FAILED,), since_s=findings.HOUR_S)
    failed = await site.database.do(selection.count(lately, patience_s=PATIENCE_S))
    found = [
        *findings.judge_work(health, queues, workers, lanes, unserved, sources, schedules, within_s=findings.HOUR_S),
        findings.judge_failures(failed, within_s=findings.HOUR_S),
    ]
    troubles = [one for one in found if one.level != "fine" and one.page]
    return {
        "title": "Overview",
        "by_state": by_state,
        "rough": rough,
        "killers": killers,
        "dead": dead[:FEW],
        "stuck": stuck,
        "spans": list(SPANS),
        "span": span,
        "charts": drawn(course, f"the last {span}", site.answers if span == "hour" else None),
        "troubles": sorted(troubles, key=lambda one: one.level != "problem"),
        "active": len(active),
        "slots": sum(row["slots"] for row in active),
        "busy": sum(row["busy_slots"] for row in active),
    }


def tally(counts: findings.Rows) -> tuple[Counter[str], set[str]]:
    """How many jobs are in each state, and of which states that is an estimate."""
    by_state: Counter[str] = Counter(dict.fromkeys(State, 0))
    for row in counts:
        by_state[row["state"]] += row["jobs"]
    return by_state, {row["state"] for row in counts if row["estimated"]}


def drawn(course: Course, when: str, answers: Answers | None) -> list[dict[str, Any]]:
    """The charts of a span of time. How many jobs wait is known for the last hour only."""
    steps = course.steps()
    columns = [course.ends[step] for step in steps]
    labels = [step.strftime("%a %H:%M UTC") for step in steps]
    begin, middle = course.span.ticks
    times = ((0, begin, "start"), (0.5, middle, "middle"), (1, "now", "end"))
    rough = any(sum(column.values()) >= 2 * SAMPLE for column in columns)
    ended = sum(sum(column.values()) for column in columns)
    shares = [
        100 * sum(column.get(death, 0) for death in DEATHS) / sum(column.values()) if column else None
        for column in columns
    ]
    whole = number(round(ended), estimated=rough)
    deaths = sum(column.get(death, 0) for column in columns for death in DEATHS)
    seen = [outcome for outcome in OUTCOMES if any(column.get(outcome) for column in columns)]
    made = [
        _chart(
            f"Attempts that ended, per {course.span.step}",
            charts.stacked(columns, OUTCOMES, labels=labels, about=f"{whole} attempts ended in {when}", times=times),
            [(outcome, outcome.replace("_", " ")) for outcome in seen],
        ),
        *([] if answers is None else [_depth(answers)]),
    ]
    for title, key in (("Run time of succeeded jobs", "ran_s"), ("Wait until the first attempt", "waited_s")):
        took = [getattr(course.times.get(step), key, None) for step in steps]
        series = {name: [None if one is None else one[n] for one in took] for n, name in enumerate(PERCENTILES)}
        latest = {name: next((v for v in reversed(one) if v is not None), None) for name, one in series.items()}
        words = [(name, f"{name} {seconds(value)}") for name, value in latest.items() if value is not None]
        made.append(_chart(title, charts.lines(series, seconds=True, about=title, times=times), words))
    about = f"{number(round(deaths), estimated=rough and deaths > 2 * SAMPLE)} of {whole} attempts died in {when}"
    drawing = charts.lines({"crashed": shares}, percent=True, about=about, times=times)
    made.append(_chart("Share of attempts that died", drawing, [("crashed", about)]))
    return made


def _depth(answers: Answers) -> dict[str, Any]:
    """How many jobs were ready and running, at 120 moments of the last hour."""
    newest = answers.depths[-1]
    begin = newest.at - timedelta(hours=1)
    ready: list[float | None] = [None] * 121
    running: list[float | None] = [None] * 121
    for depth in answers.depths:
        place = int((depth.at - begin).total_seconds() / 30)
        if 0 <= place <= 120:
            ready[place], running[place] = float(depth.ready), float(depth.running)
    ready_now = number(newest.ready, estimated=newest.ready_estimated)
    words = [("ready", f"{ready_now} ready"), ("running", f"{number(newest.running)} running")]
    drawing = charts.lines({"ready": ready, "running": running}, about="Jobs that were ready and running")
    first = answers.depths[0].at
    note = "noted since this dashboard started" if first > begin else ""
    return _chart("Jobs ready and running", drawing, words, note)


def _chart(title: str, drawing: Markup, legend: Sequence[tuple[str, str]], note: str = "") -> dict[str, Any]:
    return {"title": title, "drawing": drawing, "legend": legend, "note": note}
