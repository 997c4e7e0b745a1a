"""The memory of a job is read in portions of a bounded size, however many processes the job has."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from outlive import linux
from outlive.worker.limits import memory
from outlive.worker.limits.memory import STEP, STEPS, Survey
from tests.waiting import aeventually

MANY = 3 * STEPS
FORKS = """
import os, signal, sys
kept = os.memfd_create("kept")
os.write(kept, b"x" * 1_000_000)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        own = b"x" * 300_000
        os.write(1, b"+")
        break
signal.pause()
"""


@contextmanager
def family(children: int) -> Iterator[int]:
    """The pid of a process with so many children, each of which has memory of its own and an open memfd."""
    command = [sys.executable, "-c", FORKS, str(children)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        try:
            started = 0
            while started < children:
                started += len(process.stdout.read(children))
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def root() -> Iterator[int]:
    with family(MANY) as pid:
        yield pid


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The files of /proc that are read, with the thread that reads them."""
    found: list[tuple[int, str]] = []

    def noted(path: str, read: Callable[[str], bytes] = linux.read) -> bytes:
        found.append((threading.get_ident(), path))
        return read(path)

    monkeypatch.setattr(linux, "read", noted)
    return found


def read_all(survey: Survey, since: float = 0.0) -> int:
    """Look until all processes are read, and say how often that was."""
    looks = 1
    while not survey.look(since):
        looks += 1
    return looks


def test_a_look_reads_a_bounded_number_of_processes(root, files_read):
    survey = Survey(root)
    for _ in range(2):
        whole = False
        while not whole:
            files_read.clear()
            whole = survey.look()
            assert len(files_read) <= 2 * STEPS + STEP
    each = [memory.resident_bytes(pid) for pid in (root, *linux.descendants_of(root))]
    assert len(each) == MANY + 1
    assert survey.resident_bytes() == (sum(own for own, _ in each), sum(shared for _, shared in each))


def test_open_files_take_their_part_of_a_look_if_they_count():
    holder = f"kept = [open({os.devnull!r}) for _ in range({STEPS * STEP})]; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert Survey(process.pid).look()
        assert not Survey(process.pid).look(since=1.0)
        process.communicate(b"\n")


def test_a_file_of_many_processes_counts_once(root):
    survey = Survey(root)
    read_all(survey, since=1.0)
    assert 1_000_000 <= survey.files_bytes() < 1_100_000
    read_all(survey, since=2.0**40)
    assert survey.files_bytes() == 0, "nothing has changed since then"


def test_the_exact_memory_of_many_processes_is_read_by_a_thread(root, files_read):
    survey = Survey(root)
    read_all(survey)

    async def weigh() -> int:
        assert survey.weigh(None) is None
        return await aeventually(lambda: survey.weigh(None), what="the thread has read it") or 0

    assert asyncio.run(weigh()) > MANY * 300_000
    weighing = [thread for thread, path in files_read if path.endswith("smaps_rollup")]
    assert len(weighing) == MANY + 1
    assert threading.get_ident() not in weighing


MAPS = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
pages = 20_000
file = os.memfd_create("in many parts")
os.ftruncate(file, 4096 * pages)
at = libc.mmap(None, ctypes.c_size_t(4096 * pages), 3, 1, file, ctypes.c_long(0))
ctypes.memset(at, 1, 4096 * pages)
for page in range(0, pages, 2):
    libc.mprotect(ctypes.c_void_p(at + 4096 * page), ctypes.c_size_t(4096), 1)
os.write(1, b"+")
signal.pause()
"""


def test_a_file_that_is_mapped_in_thousands_of_parts_is_read_by_a_thread_and_its_age_once(monkeypatch):
    asked: list[int] = []

    def noted(path: str, born_at: Callable[[str], float | None] = linux.born_at) -> float | None:
        asked.append(threading.get_ident())
        return born_at(path)

    async def weigh(survey: Survey) -> int:
        assert survey.weigh(None) is None
        return await aeventually(lambda: survey.weigh(None), within_s=60, what="the thread has read it") or 0

    monkeypatch.setattr(linux, "born_at", noted)
    with subprocess.Popen([sys.executable, "-c", MAPS], stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"+"
            (one,) = memory.mappings(process.pid)
            assert (one.writable, one.proportional_bytes) == (True, 20_000 * 4096)
            survey = Survey(process.pid)
            assert survey.look()
            assert 20_000 * 4096 < asyncio.run(weigh(survey)) < 20_000 * 4096 + 50_000_000
        finally:
            process.kill()
    assert len(asked) == 1
    assert threading.get_ident() not in asked


READS = """
import mmap, signal, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(pages[at] for at in range(0, len(pages), 4096))
sys.stdout.write("+")
sys.stdout.flush()
signal.pause()
"""
OTHERS_BYTES = 64_000_000


@pytest.mark.parametrize("moment", ["smaps_rollup", "smaps"])
def test_memory_of_others_counts_for_no_one_when_they_share_it_with_one_more_meanwhile(moment, monkeypatch):
    with ExitStack() as running:
        file = running.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm"))
        file.write(b"x" * OTHERS_BYTES)
        file.flush()

        def reader() -> int:
            command = [sys.executable, "-c", READS, file.name]
            process = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0))
            running.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.read(1) == b"+"
            return process.pid

        survey = Survey(pid := reader())
        others: list[int] = []

        def noted(path: str, read: Callable[[str], bytes] = linux.read) -> bytes:
            found = read(path)
            if path == f"/proc/{pid}/{moment}" and not others:
                others.append(reader())  # From here on each of the two has half of these pages.
            return found

        async def weigh() -> int:
            assert survey.weigh(None) is None
            return await aeventually(lambda: survey.weigh(None), what="the thread has read it") or 0

        assert survey.look(time.time())
        monkeypatch.setattr(linux, "read", noted)
        assert asyncio.run(weigh()) < OTHERS_BYTES // 4
        assert others
