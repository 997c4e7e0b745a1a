"""What operators do with the steps of a job: let it begin again at one, give a value in place of one, or send it a
signal that it waits for."""

from __future__ import annotations

from uuid import UUID

from outlive import store, wire
from outlive.errors import BadArguments
from outlive.humanize import counted
from outlive.operations import By, Steps
from outlive.operations.controls import audited
from outlive.states import State

RERUN = "This step, those below it and all that were kept after it are dropped, and are taken again. The others stay."
SUPPLY = "The job goes on from this value, and does not take the step. It is JSON: write text in quotes."
SEND = "The job receives it once, and goes on if it waits for it. The value is JSON: write text in quotes."
_THEN = {
    State.SUSPENDED: "the job waits for something else, and goes on from it later",
    State.RUNNING: "the attempt under way gets it if it is in this step, and otherwise the next one",
    State.QUARANTINED: "release the job to go on from it",
    State.FAILED: "retry the job to go on from it",
    State.CANCELLED: "retry the job to go on from it",
    State.SUCCEEDED: "rerun the job from a later step to go on from it",
}


def rerun(job: UUID, step: str, by: By) -> Steps[str]:
    """Let a job begin again at a step, and say what was done. BadArguments: it can't, and why."""
    told = {"ids": [job], "from": step}
    dropped: int = yield from audited(store.rerun(job, step), by, "rerun", told, jobs=1)
    return f"the job begins again at the step {step}; {counted(dropped, 'step was', 'steps were')} dropped"


def supply(job: UUID, step: str, value: str, by: By, *, replacing: bool = False) -> Steps[str]:
    """Keep a value in place of what a step returns, and say what follows. BadArguments: it can't be kept, and why."""
    keeping = store.supply(job, step, _json(value), by.who, replacing=replacing)
    state: str = yield from audited(keeping, by, "supply", {"ids": [job], "step": step}, jobs=1)
    return f"the step {step} has this value now; {_THEN.get(State(state), 'the next attempt goes on from it')}"


def send(job: UUID, signal: str, value: str, by: By) -> Steps[str]:
    """Send a signal to a job, and say what follows. BadArguments: it can't be sent, and why."""
    sending = store.send(job, signal, _json(value))
    state: str = yield from audited(sending, by, "send", {"ids": [job], "signal": signal}, jobs=1)
    if state == State.SUSPENDED:
        return f"the signal {signal} was sent; the job is suspended: `outlive show` says what it waits for"
    return f"the signal {signal} was sent; the job is {state}"


def _json(value: str) -> bytes:
    given = value.encode(errors="surrogatepass")
    try:
        wire.check(given)
    except wire.NotJson as error:
        raise BadArguments(f"the value can't be kept: {error}; write text in quotes, as '\"paid\"'") from None
    return given
