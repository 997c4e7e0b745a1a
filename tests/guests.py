"""Programs that people run inside jobs, as an app that workers import: a browser, node, numpy, a pool of threads.

It is the app of tests/faults.py with more tasks. numpy is imported before the zygote forks, as in an app that uses it.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import numpy.random  # Loaded only when it is asked for: in the job, it would be new there.

import outlive
from outlive import linux
from tests.faults import app
from tests.waiting import eventually

__all__ = ["app"]

GROWING_PAGE = "data:text/html,<script>kept=[];setInterval(()=>kept.push(new Uint8Array(2e7).fill(1)),10)</script>"
GROWING_SCRIPT = "const kept = []; setInterval(() => kept.push(Buffer.alloc(2e7, 1)), 10)"
FAMILY_SCRIPT = """
const {fork} = require('child_process')
const kept = Buffer.alloc(1e8, 1)
const left = Number(process.argv[2]) - 1
if (left > 0) fork(process.argv[1], [left])
setInterval(() => kept[0], 1000)
"""


def browser(profile: str, *arguments: str) -> Sequence[str]:
    """The command of a browser without its sandbox, which chromium refuses to root."""
    return ("chromium", "--headless", "--no-sandbox", f"--user-data-dir={profile}", *arguments)


@app.task(memory="512MB", max_attempts=1)
def render(profile: str, page: str) -> str:
    """The page after its scripts have run."""
    words = browser(profile, "--dump-dom", page)
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


@app.task(memory="512MB", max_attempts=1, max_crashes=1)
def browse(profile: str, then: str) -> None:
    """Open a browser, write down its processes, and end without closing it."""
    subprocess.Popen(browser(profile, "--remote-debugging-port=0"), start_new_session=True)  # As browsers' drivers do.

    def there() -> bool:
        outlive.current().progress()  # It stalls only when the browser is there.
        return Path(profile, "DevToolsActivePort").exists()

    eventually(there, within_s=30)
    Path(profile + ".pids").write_text(" ".join(map(str, linux.descendants_of(os.getpid()))))
    Path(profile + ".pids").rename(profile + ".opened")
    match then:
        case "return":
            return
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()


@app.task(memory="512MB", max_crashes=1)
def browse_a_growing_page(profile: str) -> None:
    subprocess.run(browser(profile, "--remote-debugging-port=0", GROWING_PAGE), check=True)


@app.task(memory="512MB", max_attempts=1)
def ask_node(script: str) -> str:
    return subprocess.run(("node", "-p", script), check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@app.task(memory="256MB", max_crashes=1)
def run_node(path: str, *arguments: str) -> None:
    subprocess.run(("node", path, *arguments), check=True)


@app.task(memory="512MB", max_attempts=1)
def solve(size: int) -> float:
    """Invert a matrix that is large enough for all threads of the library below; returns the error."""
    matrix = numpy.random.random((size, size)) + size * numpy.eye(size)
    return float(numpy.abs(matrix @ numpy.linalg.inv(matrix) - numpy.eye(size)).max())


@app.task(memory="512MB")
def draw_numbers() -> list[float]:
    return [float(number) for number in numpy.random.random(3)]


@app.task(memory="512MB", max_attempts=1)
def meet_in_threads(n: int) -> int:
    """Each thread waits until all threads are there."""
    meeting = threading.Barrier(n, timeout=20)
    with ThreadPoolExecutor(n) as pool:
        return sum(1 for _ in pool.map(lambda _: meeting.wait(), range(n)))
