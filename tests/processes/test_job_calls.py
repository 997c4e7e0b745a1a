"""Calls of jobs, without the worker's processes."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from io import FileIO
from typing import cast

import pytest

from outlive import db, statement, store
from outlive.protocol import TO_CHILD, Call, FrameReader, Reply
from outlive.worker.attempts import job_calls
from outlive.worker.attempts.job_calls import JobCalls
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.attempts.waits import Waits
from outlive.worker.processes.children import Child
from outlive.worker.processes.zygote_handle import Parent
from outlive.worker.session import SessionPool
from tests.driving.making import Connect, Queue, request

LOCKED = "theirs"
BLOCKED = 20


class Asking:
    """A child that has made a call. Its socket has the answer."""

    def __init__(self, calls: JobCalls, dedupe_key: str | None = None) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        unused = cast("FileIO", None)
        self.child = Child(cast("Parent", None), ours, unused, unused, unused)
        wanted = store.enqueue([request(dedupe_key=dedupe_key)], max_args_bytes=1000)
        calls.put(self.child, Call(7, "run", statement.ask([wanted])))

    def answer(self) -> Reply | None:
        """The answer, if there is one. The first time only."""
        try:
            (reply,) = FrameReader(TO_CHILD).feed(self._theirs.recv(1 << 16))
        except BlockingIOError:
            return None
        return cast("Reply", reply)

    def close(self) -> None:
        self.child.socket.close()
        self._theirs.close()


def beside_locked_calls(
    connect: Connect, database_url: str, work: Callable[[JobCalls, list[Asking], Queue], Awaitable[None]]
) -> None:
    """Do something while twenty calls wait for a dedupe key that a stranger has in an open transaction."""
    stranger = connect()
    stranger.execute("begin")
    stranger.make(dedupe_key=LOCKED)

    async def use() -> None:
        pool = SessionPool(database_url, 3)
        (sessions,) = pool.share(db.CALLS)
        calls = JobCalls(sessions, cast("Waits", None), cast("ProgressWriter", None), cast("Leases", None))
        asking = [Asking(calls, LOCKED) for _ in range(BLOCKED)]
        try:
            for first in range(0, BLOCKED, job_calls.AT_ONCE):
                several = min(job_calls.AT_ONCE, BLOCKED - first)
                await asyncio.gather(*(calls.run_once() for _ in range(several)))
            assert [one.answer() for one in asking] == [None] * BLOCKED, "they wait"
            await work(calls, asking, stranger)
        finally:
            for one in asking:
                one.close()
            for session in pool.sessions:
                await session.close()

    asyncio.run(use())


@pytest.mark.fault(75)
def test_twenty_calls_at_one_locked_key_leave_the_sessions_to_other_calls(queue, connect, database_url):

    async def work(calls: JobCalls, asking: list[Asking], stranger: Queue) -> None:
        neighbour = Asking(calls)
        await calls.run_once()
        answer = neighbour.answer()
        assert answer is not None
        assert answer.error is None
        neighbour.close()
        assert queue.count("jobs") == 1
        await calls.run_blocked_once()
        assert [one.answer() for one in asking] == [None] * BLOCKED, "they still wait"
        await asyncio.to_thread(stranger.rollback)
        for _ in asking:
            await calls.run_blocked_once()
        answers = [one.answer() for one in asking]
        assert [one and one.error for one in answers] == [None] * BLOCKED
        assert calls.pending_bytes == 0

    beside_locked_calls(connect, database_url, work)
    assert queue.count("jobs") == 2, "the neighbour's, and one with the key"


def test_a_call_that_waits_for_a_lock_is_given_up_in_the_end_and_says_why(queue, connect, database_url, monkeypatch):
    monkeypatch.setattr(job_calls, "LOCK_S", 0.0)

    async def work(calls: JobCalls, asking: list[Asking], _: Queue) -> None:
        for first in range(0, BLOCKED, job_calls.BLOCKED_AT_ONCE):
            await asyncio.gather(*(calls.run_blocked_once() for _ in range(job_calls.BLOCKED_AT_ONCE)))
            assert sum(one.answer() is not None for one in asking) == job_calls.BLOCKED_AT_ONCE, first
        assert calls.pending_bytes == 0

    beside_locked_calls(connect, database_url, work)
    assert queue.count("jobs") == 0


def test_a_childs_next_call_waits_for_the_one_that_waits_for_a_lock(queue, connect, database_url):
    async def work(calls: JobCalls, asking: list[Asking], stranger: Queue) -> None:
        wanted = store.enqueue([request()], max_args_bytes=1000)
        calls.put(asking[0].child, Call(8, "run", statement.ask([wanted])))
        await calls.run_blocked_once()
        assert queue.count("jobs") == 0
        await asyncio.to_thread(stranger.rollback)
        for _ in asking:
            await calls.run_blocked_once()
        await calls.run_once()
        assert calls.pending_bytes == 0

    beside_locked_calls(connect, database_url, work)
    assert queue.count("jobs") == 2
