"""Questions about jobs that were enqueued through the client."""

import json
from pathlib import Path
from typing import Any

from outlive import Job, State, store
from outlive.model import Attempt
from outlive.states import Outcome
from tests.driving.making import Queue
from tests.waiting import eventually

ENDS = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUARANTINED)


def finished(job: Job[Any], *states: State, within_s: float = 30) -> State:
    """Wait until the job is in one of these states, or until it has ended; returns its state."""
    wanted = states or ENDS
    eventually(lambda: job.status() in wanted, within_s=within_s, what=f"{job} is {' or '.join(wanted)}")
    return job.status()


def attempts(queue: Queue, job: Job[Any]) -> list[Attempt]:
    """The ended attempts of a job, the oldest first."""
    return queue.run(store.list_attempts(job.id))


def outcomes(queue: Queue, job: Job[Any]) -> list[Outcome]:
    return [attempt.outcome for attempt in attempts(queue, job)]


def waiting_for(path: Path) -> list[int]:
    """The processes of `faults.wait_for` jobs that have begun to wait for this file."""
    return [int(found.suffixes[-2][1:]) for found in path.parent.glob(f"{path.name}.*.started")]


def begun(path: Path, *, times: int = 1, within_s: float = 20) -> list[int]:
    """Wait until `faults.wait_for` jobs have begun so many times to wait for this file; returns their processes."""
    what = f"{times} jobs wait for {path.name}"
    eventually(lambda: len(waiting_for(path)) == times, within_s=within_s, what=what)
    return waiting_for(path)


def number_in(path: Path, *, within_s: float = 20) -> int:
    """Wait until a job has written a number into this file, such as its process or its token."""
    return int(eventually(lambda: path.exists() and path.read_text(), within_s=within_s, what=f"{path} is written"))


def hook_into(folder: Path) -> str:
    """A hook that writes each call into a file of this folder. The file appears when it is complete."""
    return f"cat > {folder}/part.$$ && mv {folder}/part.$$ {folder}/told.$$"


def hook_calls(folder: Path) -> list[dict[str, Any]]:
    """The calls of the hook that `hook_into` gives, the oldest first."""
    found = sorted(folder.glob("told.*"), key=lambda path: path.stat().st_mtime_ns)
    told = [path.read_bytes() for path in found]
    assert all(one.endswith(b"\n") for one in told), "a hook may read lines"
    return [json.loads(one) for one in told]
