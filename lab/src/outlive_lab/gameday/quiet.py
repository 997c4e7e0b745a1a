"""What must be true when all faults have stopped: what can run begins soon, each death is noticed, nothing is left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.history import History
from outlive_lab.gameday.options import Bounds
from outlive_lab.gameday.replay import seconds

Row = Mapping[str, Any]


def broken(facts: Facts, bounds: Bounds) -> Broken:
    history = facts.history
    for name in history.unburied:
        yield "not buried", name, f"it is gone, and was not declared dead in {history.drain_s:.0f} s"
    for what, which in history.left_over:
        yield "left over", which, f"when all jobs were finished, there was still this {what}"
    for job, token, late_s in _Fleet(facts).late():
        if late_s > bounds.begin_s:
            what = f"its attempt {token}" if token else "it"
            yield "begun late", job, f"{what} could begin for {late_s:.1f} s, and did not"


@dataclass(slots=True)
class _Fleet:
    """Follows the rows of the workers that lived to the end, and of the jobs that wait for them.

    A job can begin while one of these has room: fewer attempts than slots, and no suspect that is to be alone.
    """

    facts: Facts
    workers: dict[str, Row] = field(default_factory=dict)
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    waiting: dict[str, float] = field(default_factory=dict)
    """When each job could be claimed."""
    claimed: dict[int, tuple[str, str, float]] = field(default_factory=dict)
    """Attempts whose code did not begin yet: the job, its worker, and when it was claimed."""
    room_s: float | None = None
    """Since when there is room."""
    fits_s: dict[str, float] = field(default_factory=dict)
    """Since when a worker has no more attempts than slots."""

    def late(self) -> Iterator[tuple[str, int, float]]:
        """A job, the token of its attempt, or 0 if it was not claimed, and how long it could begin and did not."""
        history = self.facts.history
        steps = [line for line in self.facts.found.lines if line["is"] == "step"]
        self.workers = {one["row"]["id"]: one["row"] for one in steps if one["table"] == "workers"}
        lasting = {id for id, row in self.workers.items() if row["state"] != "dead"}
        self.workers = {}
        happened: list[tuple[float, int, Row]] = [(one["at_s"], one["n"], one) for one in steps]
        starts = [(one.at_s, 0, {"table": "start", "row": {"token": one.token}}) for one in self.facts.found.starts]
        for at_s, some in groupby(sorted([*happened, *starts], key=lambda one: one[:2]), key=lambda one: one[0]):
            left = dict(self.waiting), dict(self.claimed)
            for _, _, step in some:
                self._apply(step, at_s)
            room = any(self._has_room(id, at_s) for id in lasting & self.workers.keys())
            gone = left[0] if not room else {id: left[0][id] for id in left[0].keys() - self.waiting.keys()}
            if self.room_s is not None:
                for id, since_s in gone.items():
                    yield id, 0, _given(history, max(since_s, self.room_s), at_s)
            for token in left[1].keys() - self.claimed.keys():
                id, worker, since_s = left[1][token]
                if worker in self.fits_s:
                    yield id, token, _given(history, max(since_s, self.fits_s[worker]), at_s)
            self.room_s = (at_s if self.room_s is None else self.room_s) if room else None
            for id, row in self.workers.items():
                if id not in lasting or len(self.rows[id]) > row["slots"]:
                    self.fits_s.pop(id, None)
                else:
                    self.fits_s.setdefault(id, at_s)

    def _apply(self, step: Row, at_s: float) -> None:
        row, gone = step["row"], step.get("change") == "delete"
        match step["table"]:
            case "workers":
                self.workers[row["id"]] = row
            case "waiting":
                self.waiting.pop(row["id"], None)
                if not gone:
                    self.waiting[row["id"]] = max(at_s, seconds(row["ready_at"]))
            case "running" if gone:
                self.rows[row["worker"]].pop(row["token"], None)
                self.claimed.pop(row["token"], None)
            case "running":
                if row["token"] not in self.rows[row["worker"]]:
                    self.claimed[row["token"]] = row["id"], row["worker"], at_s
                self.rows[row["worker"]][row["token"]] = row
            case "start":
                self.claimed.pop(row["token"], None)

    def _has_room(self, id: str, at_s: float) -> bool:
        row = self.workers[id]
        makes_room = row["room_until"] is not None and seconds(row["room_until"]) > at_s
        able = row["state"] == "active" and row["app"] is not None and row["trouble"] is None and not makes_room
        return able and len(self.rows[id]) < row["slots"] and not any(one["alone"] for one in self.rows[id].values())


def _given(history: History, since_s: float, until_s: float) -> float:
    """How much time the machine gave since all faults had stopped."""
    since_s = max(since_s, history.quiet_s)
    return history.machine.given_s(since_s, until_s) if since_s < until_s else 0.0
