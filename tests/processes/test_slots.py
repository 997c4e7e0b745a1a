"""The slots of a worker without a database. The test decides when the slots read from their children."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from outlive import linux
from outlive.protocol import read_tickets
from outlive.states import Outcome
from outlive.worker.ending import process_deaths
from outlive.worker.limits import memory_limits
from outlive.worker.limits.cgroups import Group
from outlive.worker.processes.assignments import assignment
from outlive.worker.processes.placement import spread
from tests.driving.slots import WARM, Heard, claimed, one_slot, some_slots
from tests.driving.workers import alive
from tests.waiting import aeventually, eventually

FRESH = "tests.faults.fresh_until"
EAT = "input(); kept = [b'x' * (1 << 20) for _ in range(100)]"


@pytest.mark.parametrize("verdict", [Outcome.CANCELLED, Outcome.TIMED_OUT])
def test_a_job_is_not_stopped_for_the_one_before_it_whose_answer_is_not_read_yet(tmp_path, verdict):
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, watch, heard):
            slots.accept(claimed("", str(tmp_path / "go")), {})
            eventually((tmp_path / "go.begun").exists, what="the first has ended, and the slots don't know it yet")
            (child,) = slots.busy
            watch.end(child, child.current, verdict, "by this test")
            await aeventually(lambda: len(heard.ends) == 1)
            assert not heard.outcomes().get(2)
            (tmp_path / "go").touch()
            await aeventually(lambda: len(heard.ends) == 2)
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.SUCCEEDED, 2: Outcome.SUCCEEDED}


def test_a_cancelled_job_does_not_begin_when_the_cancelled_one_before_it_ends(tmp_path):
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, watch, heard):
            slots.accept(claimed(str(tmp_path / "first"), str(tmp_path / "second")), {})
            eventually((tmp_path / "first.begun").exists)
            slots.cancel({1, 2})
            (child,) = slots.busy
            watch.end(child, child.current, Outcome.CANCELLED, "cancelled on request")
            await aeventually(lambda: len(heard.ends) == 2)
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.CANCELLED, 2: Outcome.CANCELLED}
    assert not (tmp_path / "second.begun").exists()


def test_a_job_queued_behind_one_that_is_stopped_begins_elsewhere(tmp_path):
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, watch, heard):
            slots.accept(claimed(str(tmp_path / "first"), ""), {})
            eventually((tmp_path / "first.begun").exists)
            (child,) = slots.busy
            watch.end(child, child.current, Outcome.TIMED_OUT, "by this test")
            assert len(child.given) == 1
            await aeventually(lambda: len(heard.ends) == 2)
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.TIMED_OUT, 2: Outcome.SUCCEEDED}


def test_zygotes_that_are_killed_while_they_import_the_app_count_against_the_job_that_sees_them_die(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(process_deaths, "MAX_ZYGOTES", 2)

    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, _, heard):
            slots.accept(claimed(str(tmp_path / "go")), {})
            await aeventually((tmp_path / "go.begun").exists)
            first = slots.zygotes.current
            first.process.kill()
            second = await aeventually(lambda: slots.zygotes.all - {first})
            second.pop().process.kill()
            await aeventually(lambda: bool(heard.ends), within_s=10)
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.LOST}


def test_a_job_given_to_a_child_that_has_died_with_its_parent_is_released():
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, _, heard):
            (child,) = slots.zygotes.ready
            linux.kill(child.parent.pid)
            eventually(lambda: not alive(child.pid), what="both are dead, and the slots don't know it yet")
            slots.accept(claimed(""), {})
            assert child.given
            await aeventually(lambda: bool(heard.ends))
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.RELEASED}


def test_a_job_that_fails_because_the_kernel_killed_its_process_is_out_of_memory(tmp_path):
    """No watch looks here, which would end most such jobs before the kernel does."""

    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, _, heard):
            if slots.zygotes.groups is None:
                pytest.skip("no memory cgroup can be made here")
            slots.accept(claimed(str(tmp_path / "go"), task="tests.faults.feed_a_process"), {})
            (child,) = slots.busy
            memory_limits.give_cgroup(child, child.current, slots.zygotes.groups)
            group = child.group
            assert group
            await aeventually(lambda: str(child.pid) in (group.path / "cgroup.procs").read_text().split())
            (tmp_path / "go").touch()
            await aeventually(lambda: bool(heard.ends))
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.OUT_OF_MEMORY}


def let_the_kernel_kill_in(group: Group) -> None:
    with subprocess.Popen([sys.executable, "-c", EAT], stdin=subprocess.PIPE) as stranger:
        Path(f"/proc/{stranger.pid}/oom_score_adj").write_text("1000")
        group.add(stranger.pid)
        group.limit(group.used_bytes() + (8 << 20))
        stranger.communicate(b"\n")
        group.limit(None)


def test_a_child_that_the_kernel_kills_while_its_zygote_dies_of_something_else_is_not_charged(tmp_path):
    """The kernel counts its kills, and does not say whom they hit."""

    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, _, heard):
            if slots.zygotes.groups is None:
                pytest.skip("no memory cgroup can be made here")
            slots.accept(claimed(str(tmp_path / "go")), {})
            (child,) = slots.busy
            await aeventually(child.has_begun)
            let_the_kernel_kill_in(slots.zygotes.groups.zygote)
            assert slots.deaths.zygote_died() == ", probably killed by the kernel for lack of memory"
            child.signal(signal.SIGKILL)
            await aeventually(lambda: bool(heard.ends))
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.RELEASED}


def test_a_job_that_takes_the_tickets_of_others_is_killed_and_they_begin_elsewhere(tmp_path):
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, watch, heard):
            slots.accept(claimed(str(tmp_path / "first"), "", ""), {})
            eventually((tmp_path / "first.begun").exists)
            (child,) = slots.busy
            assert read_tickets(child.tickets.read(100)) == [2, 3]  # As a job does that reads its child's descriptors.
            async with asyncio.timeout(20):
                while len(heard.ends) < 3:
                    await watch.run_once()
            assert "its process took the tickets" in (heard.ends[1].error or "")
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.CRASHED, 2: Outcome.RELEASED, 3: Outcome.RELEASED}


def test_a_job_whose_lease_ends_before_it_begins_is_released_with_those_behind_it():
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, watch, heard):
            os.kill(slots.zygotes.ready[0].pid, signal.SIGSTOP)
            slots.accept(claimed("", ""), {})
            watch._leases.hold([1, 2], since=-1e9)
            await watch.run_once()
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.RELEASED, 2: Outcome.RELEASED}


def test_a_job_whose_lease_could_not_be_renewed_is_given_back_at_no_cost(tmp_path):
    """FAULTS 66 and 68. The database was away, or the supervisor stood still: neither is the job's fault."""

    async def play() -> tuple[dict[int, Outcome], set[int]]:
        async with one_slot() as (slots, watch, heard):
            slots.accept(claimed(str(tmp_path / "go")), {})
            eventually((tmp_path / "go.begun").exists)
            watch._leases.hold([1], since=time.monotonic() - 290)
            async with asyncio.timeout(20):
                while not heard.ends:
                    await watch.run_once()
            return heard.outcomes(), watch._leases.not_kept

    assert asyncio.run(play()) == ({1: Outcome.RELEASED}, {1})


def test_the_stack_of_an_earlier_job_in_a_warm_child_is_not_the_next_ones():
    async def play() -> list[str | None]:
        async with one_slot() as (slots, _, _):
            child = slots.zygotes.ready[0]
            stacks = []
            for text in (b"of the first job", b"of the second job"):
                os.write(child.stack.fileno(), text)
                stacks.append(child.stack_of_ended())
            return stacks

    assert asyncio.run(play()) == ["of the first job", "of the second job"]


@pytest.mark.parametrize(
    ("elapsed_s", "strict", "waiting", "room"),
    [
        (0.005, {}, 0, 6),
        (0.005, {}, 2, 4),
        (0.005, {}, 6, 0),
        (0.02, {}, 0, 0),
        (0.005, {"on_worker_death": "fail"}, 0, 0),
        (0.005, {"max_losses": 1}, 0, 0),
    ],
)
def test_as_many_jobs_of_a_fresh_task_may_wait_for_a_slot_as_are_done_soon(tmp_path, elapsed_s, strict, waiting, room):
    """None of a task that asks for the first loss to count: a job that waits is not marked as begun."""

    async def play() -> Mapping[str, int]:
        async with one_slot() as (slots, _, _heard):
            facts = slots.tasks[FRESH]
            slots.tasks[FRESH] = msgspec.structs.replace(facts, **strict)
            slots.pace.note(FRESH, 0.0, elapsed_s, fresh=True)
            slots.accept(claimed(str(tmp_path / "go"), *[""] * waiting, task=FRESH), {})
            return slots.room.by_task()

    assert asyncio.run(play()) == ({FRESH: room} if room else {})


def test_jobs_for_which_a_warm_child_has_no_room_wait_for_the_next_one(tmp_path):
    async def play() -> tuple[list[int], Mapping[str, int], Heard]:
        async with some_slots(1, max_jobs=3) as (slots, _, heard):
            slots.accept(claimed(str(tmp_path / "go"), *[""] * 9), {})
            given, room = [len(child.given) for child in slots.busy], slots.room.by_task()
            (tmp_path / "go").touch()
            await aeventually(lambda: len(heard.ends) == 10)
            return given, room, heard

    given, room, heard = asyncio.run(play())
    assert given == [3]
    assert room == {WARM: 8 * 3 - 10}
    assert set(heard.outcomes().values()) == {Outcome.SUCCEEDED}


def test_no_jobs_are_taken_in_while_more_run_than_there_are_slots_now(tmp_path):
    async def play() -> tuple[list[Mapping[str, int]], int]:
        async with some_slots(2, max_jobs=3) as (slots, _, _heard):
            slots.accept(claimed(str(tmp_path / "go"), str(tmp_path / "go")), {})
            await aeventually(lambda: len(slots.busy) == 2)
            rooms = [slots.room.by_task()]
            slots.resize(1)
            rooms.append(slots.room.by_task())
            return rooms, slots.capacity()

    (before, after), capacity = asyncio.run(play())
    assert before[WARM] > 0
    assert (after, capacity) == ({}, 0)


def test_a_job_whose_lease_may_be_over_does_not_begin():
    async def play() -> dict[int, Outcome]:
        async with one_slot() as (slots, _, heard):
            slots.leases.hold([1], since=time.monotonic() - 300)
            slots.accept(claimed("", ""), {})
            await aeventually(lambda: len(heard.ends) == 2)
            return heard.outcomes()

    assert asyncio.run(play()) == {1: Outcome.RELEASED, 2: Outcome.SUCCEEDED}


def test_no_jobs_wait_for_the_next_child_if_none_can_be_forked(tmp_path):
    async def play() -> Mapping[str, int]:
        async with some_slots(1, max_jobs=3) as (slots, _, _heard):
            slots.accept(claimed(str(tmp_path / "go")), {})
            slots.trouble = "no process can be forked"
            return slots.room.by_task()

    assert asyncio.run(play()) == {WARM: 2}


def test_jobs_that_wait_for_the_next_child_are_released_soon_if_the_present_job_takes_long(tmp_path):
    async def play() -> list[dict[int, Outcome]]:
        async with some_slots(1, max_jobs=2) as (slots, _, heard):
            slots.accept(claimed(str(tmp_path / "go"), "", ""), {})
            (child,) = slots.busy
            seen = []
            for later_s in (0.05, 0.07, 0.12):
                slots.drop_unplaced(child.current.started + later_s)
                seen.append(heard.outcomes())
            return seen

    assert asyncio.run(play()) == [{}, {}, {3: Outcome.RELEASED}]


def test_a_child_gets_its_share_of_many_jobs_before_another_child_is_woken():
    async def play() -> tuple[list[int], list[list[int]]]:
        async with some_slots(2) as (slots, _, heard):
            shares = [slots.room.share(jobs, WARM) for jobs in (10, 127, 128, 640, 10_000)]
            slots.accept(claimed("", ""), {})
            await aeventually(lambda: len(heard.ends) == 2)
            jobs = [assignment(job, slots.tasks[WARM], b"", marked=True) for job in claimed(*[""] * 7)]
            loads = spread(jobs, slots.children, free=2, at_hand=2, share=lambda _: 3, ahead=lambda _: 30)
            return shares, [[one.job.token for one in load.jobs] for load in loads]

    shares, loads = asyncio.run(play())
    assert shares == [1, 1, 2, 10, 30]
    assert loads == [[1, 2, 3, 7], [4, 5, 6]]


def test_the_parents_of_a_slot_outlast_its_children():
    async def play() -> list[set[int]]:
        async with some_slots(1, max_jobs=2) as (slots, _, heard):
            seen = []
            for _ in range(5):
                heard.ends.clear()
                slots.accept(claimed(""), {})
                await aeventually(lambda: len(heard.ends) == 1)
                await aeventually(
                    lambda: len(slots.zygotes.ready) == 1 and not any(one.retiring for one in slots.children)
                )
                seen.append({one.pid for one in slots.zygotes.current.parents})
            return seen

    first, *others = asyncio.run(play())
    assert len(first) == 2
    assert others == [first] * 4
