"""The verdict on a game: its faults, its figures, whether everything is right, and what that proves. Pure."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from outlive_lab import environment
from outlive_lab.gameday import checker, sharing, times
from outlive_lab.gameday.checker import Breach
from outlive_lab.gameday.deck import DECK, HA_DECK
from outlive_lab.gameday.facts import Facts
from outlive_lab.gameday.history import Answer, Found, History, Kind
from outlive_lab.gameday.options import Options
from outlive_lab.gameday.times import Times

NAMED = 20
"""How many breaches of a rule are named."""

ZERO = (
    *("lost", "finished twice", "effect doubled", "stale effect"),
    *("begun too early", "not released", "called back twice", "not called back"),
    *("over its limit", "fired twice", "not fired", "innocent charged", "mixed up"),
    *("step taken again", "step changed", "once doubled", "once lost", "signal lost", "signal doubled"),
)
"""Rules whose count is shown even if it is zero."""


@dataclass(frozen=True, slots=True)
class Verdict:
    options: Options
    history: History
    found: Found
    breaches: Sequence[Breach]
    times: Sequence[Times]
    seconds: float
    postgres: str

    @property
    def right(self) -> bool:
        return not self.breaches and all(one.held is not False for one in self.times)

    @property
    def stolen(self) -> float:
        """Which part of the game's time the host gave to other machines."""
        return self.history.machine.stolen_s(-math.inf, math.inf) / self.seconds

    def broken(self, rule: str) -> list[Breach]:
        return [breach for breach in self.breaches if breach.rule == rule]

    def suspects(self) -> list[UUID]:
        """Some of the jobs that break a rule."""
        found = []
        for subject in dict.fromkeys(breach.subject for breach in self.breaches):
            with contextlib.suppress(ValueError):  # It is a worker or a token.
                found.append(UUID(subject))
        return found[:NAMED]

    @property
    def bound(self) -> str:
        """The bound that the game proves, if none of these rules is broken."""
        seen = [rule for rule in ZERO if self.broken(rule)]
        return f"no bound: {', '.join(seen)}" if seen else checker.bound(self.history.kills)

    @property
    def worst_death(self) -> Times | None:
        """The times that include the slowest death."""
        return max((one for one in self.times if one.samples_s), key=lambda one: max(one.samples_s), default=None)

    def counts(self) -> dict[str, int]:
        """The figures, in the order in which the report shows them."""
        answers = Counter(ask.answer for ask in self.history.asks)
        unknown = {ask.id for ask in self.history.asks if ask.answer is Answer.UNKNOWN}
        ended = {attempt.job for attempt in self.found.attempts if attempt.state == "succeeded"}
        pauses = [fault for fault in self.history.faults if fault.kind is Kind.PAUSE]
        taken = [fault for fault in pauses if fault.taken]
        facts = Facts(self.history, self.found)
        shared = [id for id in self.found.jobs if facts.shares(id)]
        again = Counter(later.job for _, later in sharing.again(facts))
        links = [ask.links for ask in self.history.asks if ask.id in self.found.jobs]
        return {
            "kills": self.history.kills,
            "jobs acknowledged": answers[Answer.OK],
            "enqueued by jobs": sum(id.version == 5 for id in self.found.jobs),
            "enqueued by schedules": len(self.found.ticks),
            "jobs that wait for others": sum(bool(one.after) for one in links),
            "jobs with a key": sum(one.key is not None for one in links),
            "durable jobs": sum(task == "endure" for task in self.found.jobs.values()),
            "jobs that share a process": len(shared),
            "of those begun again in another one": sum(bool(again[id]) for id in shared),
            "of those harmful": sum(map(facts.harms, shared)),
            "steps kept": len(self.found.kept),
            "signals sent": len(self.found.sent),
            "batches": len(self.history.batches),
            "callbacks of batches": len(self.found.callbacks),
            "answers unknown": answers[Answer.UNKNOWN],
            "of those found": len(unknown & self.found.jobs.keys()),
            "jobs finished": len(ended),
            "attempts": len(self.found.attempts),
            **{rule: len(self.broken(rule)) for rule in ZERO},
            "stale writes fenced": len(self.found.fenced) + self.history.reports_fenced,
            "frozen trees taken over": len(taken),
            "frozen trees not taken over": len(pauses) - len(taken),
            "late completions of trees taken over": sum(len(fault.taken) for fault in taken),
            "of those fenced": len(self.history.taken() & set(self.found.fenced)),
        }

    def faults(self) -> dict[str, int]:
        counted = Counter(fault.kind for fault in self.history.faults)
        return {str(kind): counted[kind] for kind in (HA_DECK if self.options.ha else DECK)}

    def throughput(self) -> list[tuple[int, int]]:
        """Successes in each second since the beginning."""
        began = self.history.began_s
        counted = Counter(int(one.ended_s - began) for one in self.found.attempts if one.outcome == "succeeded")
        return [(second, counted[second]) for second in range(max(counted, default=-1) + 1)]

    def as_json(self, evidence: Sequence[dict[str, object]] = ()) -> dict[str, object]:
        began = self.history.began_s
        rules = Counter(breach.rule for breach in self.breaches)
        return {
            "right": self.right,
            "seed": self.options.seed,
            "seconds": round(self.seconds, 1),
            "workers": self.options.workers,
            "slots": self.options.slots,
            "rate": self.options.rate,
            **{name.replace(" ", "_"): count for name, count in self.counts().items()},
            "faults": self.faults(),
            "times": [one.as_json() for one in self.times],
            "stolen": round(self.stolen, 3),
            "drained_s": round(self.history.drain_s, 2),
            "stopped": self.history.stopped,
            "bound": self.bound,
            "breaches": [
                {"rule": rule, "count": count, "named": [[one.subject, one.words] for one in self.broken(rule)[:NAMED]]}
                for rule, count in rules.items()
            ],
            "evidence": list(evidence),
            "throughput": self.throughput(),
            "marks": [[round(one.at_s - began, 3), str(one.kind), one.worker] for one in self.history.faults],
            "outages": [[round(start - began, 3), round(end - began, 3)] for start, end in self.history.outages],
            "samples": {
                one.name: [[round(at_s - began, 3), round(took_s, 4)] for at_s, took_s in one.points]
                for one in self.times
            },
            **environment.describe(self.postgres),
        }


def judge(options: Options, history: History, found: Found, *, seconds: float, postgres: str) -> Verdict:
    breaches = checker.check(history, found, options.bounds)
    measured = times.measure(history, found, options.bounds)
    return Verdict(options, history, found, breaches, measured, seconds, postgres)
