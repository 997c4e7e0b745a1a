"""Jobs that leave something in their process, as an app that workers import. Each way has a name."""

import asyncio
import ctypes
import faulthandler
import gc
import locale
import mmap
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path

import outlive

app = outlive.App()
kept: list[object] = []
"""What jobs keep."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
libc = ctypes.CDLL(None)


def _shared() -> None:
    kept.append(shared_memory.SharedMemory(create=True, size=4096))


def _mapped() -> None:
    kept.append(mapped := mmap.mmap(-1, 4096))
    mapped[0] = 1


def _lose_directory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


def _replace_descriptor() -> None:
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)


def _handle_quietly(number: int) -> None:
    """Install a handler without telling Python."""
    libc.signal(number, signal.SIG_IGN.value)
    libc.signal(number, ctypes.cast(libc.abs, ctypes.c_void_p))


def _move() -> None:
    os.environ["TZ"] = "UTC+3"
    time.tzset()
    del os.environ["TZ"]


def _reopen() -> None:
    os.close(2)
    os.open(os.devnull, os.O_WRONLY)


LEFT: dict[str, Callable[[], object]] = {
    # Processes, threads, memory
    "a thread": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
    "a pool of threads": lambda: kept.append(ThreadPoolExecutor(2).submit(threading.Event().wait, 600)),
    "a process": lambda: subprocess.Popen(["sleep", "600"]),
    "a daemon": lambda: subprocess.Popen(["sh", "-c", "setsid sleep 600 & exit"]).wait(),
    "a dead process that it did not wait for": lambda: kept.append(subprocess.Popen(["true"])),
    "a pool of processes": lambda: kept.append(multiprocessing.Pool(2)),
    "50 MB": lambda: kept.append(b"x" * 50_000_000),
    "20 MB in small pieces": lambda: kept.append([b"%500d" % n for n in range(40_000)]),
    "shared memory with a name": _shared,
    "shared memory without a name": _mapped,
    # Descriptors
    "an open file": lambda: os.open(os.devnull, os.O_RDONLY),
    "a socket": lambda: kept.append(socket.socket()),
    "an event loop": lambda: kept.append(asyncio.new_event_loop()),
    "closed output": lambda: os.close(1),
    "closed standard streams": lambda: os.closerange(0, 3),
    "another file in place of its errors": _reopen,
    "another file in place of its output": _replace_descriptor,
    "output that does not block": lambda: os.set_blocking(1, False),
    "sys.stdout replaced": lambda: setattr(sys, "stdout", sys.stderr),
    "sys.stdout closed": lambda: sys.stdout.close(),
    "sys.stderr gone": lambda: setattr(sys, "stderr", None),
    # What the kernel keeps for the process
    "another working directory": lambda: os.chdir("/"),
    "a working directory that is gone": _lose_directory,
    "another umask": lambda: os.umask(0o077),
    "a soft limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(7)[1])),
    "a limit of file sizes": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    "a nice value": lambda: os.nice(1),
    "another scheduler": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
    "fewer processors": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "another OOM score": lambda: Path("/proc/self/oom_score_adj").write_text("600"),
    "another name": lambda: libc.prctl(15, b"other", 0, 0, 0),
    "no signal at its parent's death": lambda: libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0),
    "no care for orphans": lambda: libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0),
    "no new privileges": lambda: libc.prctl(38, 1, 0, 0, 0),
    "locked memory": lambda: libc.mlock(ctypes.c_char_p(b"x" * 100), 10),
    # Signals and timers
    "an ignored signal": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "a handler of its own": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "another handler of SIGTERM": lambda: signal.signal(signal.SIGTERM, lambda *_: None),
    "a handler that Python does not know": lambda: _handle_quietly(signal.SIGSEGV),
    "no report of fatal signals": lambda: faulthandler.disable(),
    "a blocked signal": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
    "an alarm": lambda: signal.alarm(600),
    "a timer of CPU time": lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 600),
    # The environment and the interpreter
    "a variable": lambda: os.environ.update(LEFT="1"),
    "a variable less": lambda: os.environ.pop("PATH"),
    "an empty environment": lambda: os.environ.clear(),
    "os.environ replaced": lambda: setattr(os, "environ", dict(os.environ)),
    "another locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "another time zone": _move,
    "a trace function": lambda: sys.settrace(lambda *_: None),
    "a profile function": lambda: sys.setprofile(lambda *_: None),
    "a recursion limit": lambda: sys.setrecursionlimit(5000),
    "no garbage collection": gc.disable,
    "a timeout of all sockets": lambda: socket.setdefaulttimeout(600),
}


async def _do_nothing() -> None: ...


def _tidy() -> None:
    """Use most of the above, and give it back."""
    thread = threading.Thread(target=len, args=("",))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(len, ["", ""]))
    subprocess.run(["true"], check=True)
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 1000)
    os.environ["LEFT"] = "1"
    del os.environ["LEFT"]
    os.umask(os.umask(0o077))
    signal.signal(signal.SIGUSR1, signal.signal(signal.SIGUSR1, signal.SIG_IGN))
    signal.alarm(600)
    signal.alarm(0)
    asyncio.run(_do_nothing())
    bytearray(30_000_000)
    print("Hello")
    kept.append(b"x" * 1000)


@app.task(recycle_after="clean", max_attempts=1, max_crashes=1)
def leave(what: str = "") -> int:
    """Leave something, or nothing, and return the own process."""
    if what:
        LEFT[what]()
    return os.getpid()


@app.task(recycle_after="clean")
def tidy() -> int:
    _tidy()
    return os.getpid()


@app.task(recycle_after="clean")
def grow() -> int:
    """Keep 1 MB."""
    kept.append(b"x" * 1_000_000)
    return os.getpid()


@app.task(recycle_after="clean")
def draw() -> list[float]:
    """Draw a number, and seed the generator for all later ones. Returns the own process and the number."""
    drawn = random.random()
    random.seed(1)
    return [os.getpid(), drawn]


@app.task(recycle_after="clean", preload=False)
def leave_cold(what: str = "") -> int:
    if what:
        LEFT[what]()
    return os.getpid()


@app.task(recycle_after="clean", max_attempts=1, max_crashes=1)
def fail(what: str) -> None:
    LEFT[what]()
    raise ValueError(str(os.getpid()))


@app.task(recycle_after="clean")
def begin(what: str = "") -> list[float]:
    """Returns the own process, and when the job began."""
    began = time.monotonic()
    if what:
        LEFT[what]()
    return [os.getpid(), began]
