"""The rule of limits by key: no more jobs of a key run at a time than its limit says."""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

from outlive_lab.gameday.facts import Broken, Facts


def broken(facts: Facts) -> Broken:
    spans: dict[str, list[tuple[float, float, UUID]]] = defaultdict(list)
    limits: dict[str, int] = {}
    attempts = {one.token: one for one in facts.found.attempts}
    effects_s = {one.token: one.at_s for one in facts.found.effects}
    seen: set[int] = set()
    for start in sorted(facts.found.starts, key=lambda one: one.at_s):
        links = facts.links.get(start.job)
        if links is None or links.key is None or start.token in seen:
            continue
        seen.add(start.token)
        limits[links.key] = links.concurrency
        # An attempt runs from the row that it writes first to its end in the database, or to its effect if that is
        # later. A process whose attempt was lost may go on for a while, which its worker's death or freeze explains.
        attempt = attempts.get(start.token)
        end_s = attempt.ended_s if attempt else start.at_s
        if attempt is None or attempt.outcome != "lost":
            end_s = max(end_s, effects_s.get(start.token, end_s))
        spans[links.key].append((start.at_s, end_s, start.job))
    for key, running in spans.items():
        for at_s, _, _ in running:
            there = [job for began_s, end_s, job in running if began_s <= at_s < end_s]
            if len(there) > limits[key]:
                words = f"{len(there)} of its jobs ran at the same time, and {limits[key]} may: "
                yield "over its limit", f"key {key}", words + ", ".join(map(str, there))
