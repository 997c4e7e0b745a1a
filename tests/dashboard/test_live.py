"""Live pages: what changes reaches every browser, and one look serves them all."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from outlive.dashboard.access import Role
from outlive.dashboard.live import Live
from outlive.dashboard.pages import PAGES
from outlive.dashboard.visits import Visit
from outlive.states import Outcome
from tests.driving.making import make_finished

JOBS = next(page for page in PAGES if page.path == "/jobs")


async def event(stream: AsyncIterator[bytes], name: str) -> dict[str, str]:
    """The data of the next event of this name."""
    async for sent in stream:
        if sent.startswith(f"event: {name}\n".encode()):
            return msgspec.json.decode(sent.partition(b"data: ")[2], type=dict[str, str])
    raise AssertionError


def test_a_change_is_sent_to_everyone_who_looks(dashboard, queue):
    visit = Visit(JOBS, Role.VIEWER, "", query=(("task", "import"),))
    first = queue.make("import")

    async def two_look() -> tuple[str, str]:
        streams = [dashboard.site.live.stream(visit) for _ in range(2)]
        before = [(await event(one, "parts"))["live_jobs"] for one in streams]
        assert all(str(first) in html for html in before)
        job = await asyncio.to_thread(make_finished, queue, Outcome.FAILED, task="import")
        after = [(await asyncio.wait_for(event(one, "parts"), 5))["live_jobs"] for one in streams]
        for one in streams:
            await one.aclose()
        return str(job), "".join(after)

    job, sent = dashboard.run(two_look())
    assert sent.count(f'id="j-{job}"') == 2
    assert dashboard.site.live.streams == 0


def test_one_look_serves_all_who_have_the_page_open():
    looks = 0

    async def look(visit: Visit) -> Mapping[str, str]:
        nonlocal looks
        looks += 1
        return {"live_jobs": f"look {looks}"}

    async def ten_look() -> None:
        live = Live(look)
        streams = [live.stream(Visit(JOBS, Role.VIEWER, "")) for _ in range(10)]
        told = [await event(one, "parts") for one in streams]
        assert told == [{"live_jobs": "look 1"}] * 10
        for one in streams:
            await one.aclose()

    asyncio.run(ten_look())
    assert looks == 1


def test_a_page_that_can_not_be_looked_at_says_so_and_goes_on():
    answers = iter([ValueError("a bug"), None, None])

    async def look(visit: Visit) -> Mapping[str, str]:
        if error := next(answers):
            raise error
        return {"live_jobs": "here again"}

    async def looking() -> None:
        stream = Live(look).stream(Visit(JOBS, Role.VIEWER, ""))
        assert "does not update" in (await event(stream, "problem"))["text"]
        assert await event(stream, "parts") == {"live_jobs": "here again"}
        assert await event(stream, "problem") == {}
        await stream.aclose()

    asyncio.run(looking())
