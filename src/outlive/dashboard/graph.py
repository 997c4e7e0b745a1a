"""The graph of jobs that wait for each other, as SVG: a column for each depth, and a line from each job to those that
wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from markupsafe import Markup, escape

from outlive.dashboard.rendering import Links
from outlive.humanize import one_line, plain

MOST = 50
"""How many jobs are drawn. More are listed."""
_WIDE, _TALL, _GAP_X, _GAP_Y = 170, 38, 46, 12
_LETTERS = 22

Job = Mapping[str, Any]


def draw(jobs: Sequence[Job], own: UUID, at: Links) -> Markup:
    """Jobs with `id`, `task`, `state` and `after`, which names jobs among them."""
    columns = _columns(jobs)
    places = {
        job["id"]: (1 + n * (_WIDE + _GAP_X), 1 + m * (_TALL + _GAP_Y))
        for n, column in enumerate(columns)
        for m, job in enumerate(column)
    }
    wide = len(columns) * (_WIDE + _GAP_X) - _GAP_X + 2
    tall = max(map(len, columns)) * (_TALL + _GAP_Y) - _GAP_Y + 2
    lines = [_line(places[needed], places[job["id"]]) for job in jobs for needed in job["after"]]
    nodes = [_node(job, places[job["id"]], at, own=job["id"] == own) for job in jobs]
    head = f'<svg class="graph" width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" role="group" '
    about = f"{len(jobs)} jobs that wait for each other"
    return Markup(f'{head}aria-label="{about}">{"".join([*lines, *nodes])}</svg>')


def _columns(jobs: Sequence[Job]) -> list[list[Job]]:
    """A job stands one column after the last of those that it waits for, near the height of these."""
    by_id = {job["id"]: job for job in jobs}
    depths: dict[UUID, int] = {}

    def depth(id: UUID) -> int:
        if id not in depths:
            depths[id] = 0  # A loop, which no enqueue makes, would end here.
            depths[id] = max((depth(needed) + 1 for needed in by_id[id]["after"]), default=0)
        return depths[id]

    columns: dict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        columns[depth(job["id"])].append(job)
    rows: dict[UUID, int] = {}
    for _, column in sorted(columns.items()):
        column.sort(key=lambda job: sum(rows.get(one, 0) for one in job["after"]) / max(1, len(job["after"])))
        rows |= {job["id"]: n for n, job in enumerate(column)}
    return [column for _, column in sorted(columns.items())]


def _line(begin: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = begin[0] + _WIDE, begin[1] + _TALL // 2
    to_x, to_y = end[0], end[1] + _TALL // 2
    half = (x + to_x) // 2
    return f'<path class="edge" d="M{x} {y}C{half} {y} {half} {to_y} {to_x} {to_y}"/>'


def _node(job: Job, place: tuple[int, int], at: Links, *, own: bool) -> str:
    x, y = place
    task = plain(one_line(job["task"]))
    words = task if len(task) <= _LETTERS else "…" + task[1 - _LETTERS :]
    current = ' aria-current="page"' if own else ""
    return (
        f'<a class="node" href="{escape(at("jobs", job["id"]))}"{current}><title>{escape(task)} {job["id"]}</title>'
        f'<rect class="box" x="{x}" y="{y}" width="{_WIDE}" height="{_TALL}" rx="5"/>'
        f'<rect class="c-{escape(job["state"])}" x="{x}" y="{y}" width="4" height="{_TALL}"/>'
        f'<text x="{x + 12}" y="{y + 16}">{escape(words)}</text>'
        f'<text class="of" x="{x + 12}" y="{y + 30}">{escape(job["state"])}</text></a>'
    )
