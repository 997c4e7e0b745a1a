"""The rules of jobs that wait for other jobs."""

from __future__ import annotations

from outlive_lab.gameday.facts import Broken, Facts
from outlive_lab.gameday.history import UNLINKED


def broken(facts: Facts) -> Broken:
    for id, began_s in facts.begun.items():
        links = facts.links.get(id, UNLINKED)
        for needed in links.after:
            end = facts.end(needed)
            if end is None or began_s < end.ended_s:
                early = "" if end is None else f"{end.ended_s - began_s:.3f} s "
                yield "begun too early", id, f"it began {early}before job {needed}, which it waits for, had ended"
            elif end.state != "succeeded" and links.on_failure != "proceed":
                why = f"job {needed}, which it waits for, is {end.state}, and on_failure is {links.on_failure}"
                yield "begun wrongly", id, f"it began although {why}"
    for id, place in facts.found.places:
        if place == "dependent" and facts.kept_back(id) != "blocked":
            ended = ", ".join(map(str, facts.links[id].after))
            yield "not released", id, f"it is still blocked although all jobs that it waits for have ended: {ended}"
