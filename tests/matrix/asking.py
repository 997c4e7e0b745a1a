"""What a test of the matrix asks after a fault: did every job end, and only once, and what did it cost?"""

from collections.abc import Sequence
from typing import Any

import psycopg

import outlive
from outlive.states import State
from tests.waiting import eventually

ENDED = ("succeeded", "failed", "cancelled", "quarantined")


def ends(url: str, jobs: Sequence[outlive.Job[Any]]) -> dict[str, int]:
    """How many ends there are of these jobs, by state: a job that ended twice counts twice."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "select state, count(*) from outlive.attempts where job_id = any(%s) and state = any(%s) group by state",
            [[job.id for job in jobs], list(ENDED)],
        ).fetchall()
    return {str(state): int(count) for state, count in rows}


def all_end_once(url: str, jobs: Sequence[outlive.Job[Any]], *, within_s: float = 60) -> None:
    """Every job succeeds, and has one end; nothing is left in the queue (V1, V2, V13)."""

    def ended() -> bool:
        try:
            return sum(ends(url, jobs).values()) >= len(jobs)
        except psycopg.OperationalError:  # The server may just come back.
            return False

    eventually(ended, within_s=within_s, what=f"all {len(jobs)} jobs end")
    assert ends(url, jobs) == {State.SUCCEEDED: len(jobs)}
    with psycopg.connect(url, autocommit=True) as connection:
        unfinished = "select from outlive.job_states where id = any(%s) and status <> 'succeeded'"
        assert connection.execute(unfinished, [[job.id for job in jobs]]).fetchall() == []


def outcomes(url: str, job: outlive.Job[Any]) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        query = "select outcome from outlive.attempts where job_id = %s order by attempt"
        return [str(outcome) for (outcome,) in connection.execute(query, [job.id])]


def dead_workers(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        return len(connection.execute("select from outlive.workers where state = 'dead'").fetchall())
