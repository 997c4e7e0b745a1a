"""Drives one job system: fills its queue, watches its workers empty it, and times what it does.

`python -m driving MODULE` imports a module of this directory, which has a class `Queue`, and answers requests: one line
of JSON each, on standard input and output. It is executed by path with the interpreter of the system that it drives, so
it imports nothing of outlive and nothing but the standard library.
"""

import asyncio
import inspect
import json
import socket
import sys
import time
from importlib import import_module
from pathlib import Path

from shared import MARK, SOCKET, TIMES

BATCH = 1000
WARM_UP = 5
PAUSE_S = 0.02
PATIENCE_S = 60.0
"""The longest silence of the workers before the driver gives up."""
FIRST = 0.1
"""The part of the jobs that must have begun before the clock starts: by then, all processes of a worker run."""


class Driver:
    def __init__(self, queue):
        self._queue = queue
        self._marks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._marks.settimeout(PATIENCE_S)
        self._marks.bind(SOCKET)

    async def call(self, method, *arguments):
        """Systems have sync and async clients."""
        answer = getattr(self._queue, method)(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def install(self):
        """Make the tables, and open the client's connection."""
        await self.call("install")
        return {}

    async def load(self, count):
        """Enqueue in bulk, a thousand at a time."""
        began_s = time.monotonic()
        for first in range(0, count, BATCH):
            await self.call("bulk", range(first, min(first + BATCH, count)))
        return {"bulk_per_s": count / (time.monotonic() - began_s)}

    async def drain(self, count):
        """The rate from the moment a tenth of the jobs has begun until the queue is empty."""
        marks = range(0, count, MARK)
        first = marks[max(1, int(len(marks) * FIRST))]
        seen = set()
        while len(seen) < len(marks):
            number, at_s = self._mark()
            seen.add(number)
            if number == first:
                began_s = at_s
        while await self.call("left"):
            if time.monotonic() - at_s > PATIENCE_S:
                raise TimeoutError("jobs are left after the last one has begun")
            await asyncio.sleep(0.005)
        return {"per_s": (count - first) / (time.monotonic() - began_s)}

    async def pick_up(self, times):
        """The milliseconds from the return of each enqueue to the first line of its job."""
        waited_ms = []
        for turn in range(WARM_UP + times):
            await asyncio.sleep(PAUSE_S)
            await self.call("one", turn * MARK)
            returned_s = time.monotonic()
            number, at_s = self._mark()
            assert number == turn * MARK, "each job begins before the next one is enqueued"
            waited_ms.append(1000 * (at_s - returned_s))
        return {"waited_ms": waited_ms[WARM_UP:]}

    async def one_by_one(self, seconds):
        """Enqueue one job after the other. No worker runs."""
        return await self._per_s("one", seconds)

    async def bare(self, seconds):
        """Only ours: the least that a durable enqueue can be."""
        return await self._per_s("bare", seconds)

    async def _per_s(self, method, seconds):
        for _ in range(WARM_UP):
            await self.call(method, 1)
        times, began_s = 0, time.monotonic()
        while (took_s := time.monotonic() - began_s) < seconds:
            await self.call(method, 1)
            times += 1
        return {"per_s": times / took_s}

    async def wait(self, count):
        """Jobs that wait, on an idle worker. After the call that has enqueued them all returned: how long until all
        have ended, by the system's own count and by theirs, and how soon each began."""
        await self._waited(WARM_UP)
        return await self._waited(count)

    async def _waited(self, count):
        _forget_times()
        await self.call("waiting", range(count))
        returned_s = time.monotonic()
        while len(_times("ended")) < count or await self.call("left"):
            if time.monotonic() - returned_s > 3 * PATIENCE_S:
                raise TimeoutError(f"some of {count} jobs still wait after {3 * PATIENCE_S:.0f} s")
            await asyncio.sleep(0.02)
        took_s = time.monotonic() - returned_s
        began = _times("began")
        assert len(began) == len(_times("ended")) == count, "each job has run once"
        return {"took_s": took_s, "waited_ms": [1000 * max(0.0, at_s - returned_s) for at_s in began]}

    def _mark(self):
        try:
            number, at_s = self._marks.recv(100).split()
        except TimeoutError:
            raise TimeoutError(f"no job began for {PATIENCE_S:.0f} s") from None
        return int(number), float(at_s)


def _forget_times():
    Path(TIMES).write_bytes(b"")


def _times(what):
    """When jobs began or ended."""
    lines = (line.split() for line in Path(TIMES).read_text().splitlines())
    return [float(words[1]) for words in lines if words[0] == what]


async def serve(module):
    driver = Driver(import_module(module).Queue())
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        try:
            answer = await getattr(driver, request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
