"""Jobs that go wrong in every way that we know, as an app that workers import. outlive itself has no such hooks."""

import contextlib
import ctypes
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

import msgspec

import outlive
from outlive import job_gateway, linux
from outlive.child.channel import Channel
from outlive.protocol import CHECKPOINT, Call, Done, Frame, KeptStep, Progress, encode_frame
from outlive.states import Outcome

app = outlive.App()


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task
async def add_slowly(a: int, b: int) -> int:
    import asyncio  # Not at the top, as below: with its libraries it is half of what a zygote imports.

    await asyncio.sleep(0.01)
    return a + b


@app.task(max_attempts=5, backoff=0)
def invoice(price: Decimal, due: date) -> tuple[Decimal, date]:
    if not isinstance(price, Decimal) or not isinstance(due, date):
        raise outlive.Fail(f"{price!r} and {due!r} came")
    return price, due


@app.task(recycle_after=10000)
def warm(n: int = 0) -> int:
    return os.getpid()


@app.task(recycle_after=10000)
def warm_for(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@app.task(recycle_after=10000)
def warm_until(path: str) -> None:
    """Return at once without a path; with one, note the start and go on until the file is there."""
    if path:
        Path(path + ".begun").touch()
        while not Path(path).exists():
            time.sleep(0.01)


@app.task(recycle_after=10000)
def say_warmly(path: str) -> str | None:
    """The same, and print the file's name before, unless it is `silent`. If it is `large`, so is the result."""
    word = Path(path).name
    if word != "silent":
        print(word, flush=True)
    warm_until.function(path)
    return "x" * 300_000 if word == "large" else None


@app.task
def fresh_until(path: str) -> None:
    warm_until(path)


@app.task
def slowly(folder: str) -> None:
    """Note the beginning, and 0.3 s later the end."""
    Path(folder, f"begun-{os.getpid()}").touch()
    time.sleep(0.3)
    Path(folder, f"ended-{os.getpid()}").touch()


@app.task
def touch(path: str) -> None:
    Path(path).touch()


def _hold(path: str, how: str) -> None:
    """Go on until the file is there: plainly, with a process beside it that must not die, or despite every signal."""
    process = subprocess.Popen(["sleep", "600"]) if how == "with a process" else None
    Path(f"{path}.{os.getpid()}.begun").touch()
    while not Path(path).exists():
        if process and process.poll() is not None:
            raise RuntimeError("its process died")
        try:
            time.sleep(0.01)
        except outlive.Stopped:
            if how != "stubbornly":
                raise
    if process:
        process.kill()


@app.task(max_attempts=1, max_crashes=1, max_losses=1)
def hold(path: str, how: str) -> None:
    _hold(path, how)


@app.task(max_attempts=1, max_crashes=1, max_losses=1, preload=False)
def hold_cold(path: str, how: str) -> None:
    _hold(path, how)


@app.task
def own_pid() -> list[int]:
    return [os.getpid(), os.getpgid(0), os.getsid(0), os.getppid()]


@app.task(preload=False)
def cold() -> list[int]:
    return [os.getpid(), "tests.only_when_preloaded" in sys.modules]


@app.task(backoff=0)
def segfault() -> None:
    print("the last words before the segfault", flush=True)
    ctypes.string_at(0)


@app.task(backoff=0)
def die_by(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)


@app.task(backoff=0)
def exit_with(code: int) -> None:
    os._exit(code)


@app.task(backoff=0, max_attempts=2)
def raise_error(message: str = "no") -> None:
    raise ValueError(message)


@app.task(backoff=0, max_attempts=2)
def leave(code: int) -> None:
    sys.exit(code)


@app.task(timeout=0.5, max_attempts=1)
def hang() -> None:
    time.sleep(600)


@app.task(timeout=0.5, max_attempts=1)
def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@app.task(timeout=0.5, max_attempts=1)
def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(600)


@app.task(max_attempts=1)
def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task(memory="64MB", max_crashes=1)
def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(b"x" * 4_000_000)
        time.sleep(0.01)


@app.task(memory="64MB", max_crashes=1)
def eat_slowly() -> None:
    eaten = []
    while True:
        eaten.append(b"x" * 2_000_000)
        time.sleep(0.02)


@app.task(max_attempts=1)
def raise_memory_error() -> None:
    raise MemoryError("no more")


@app.task(max_attempts=1)
def stall() -> None:
    time.sleep(600)


@app.task
def leave_grandchildren(path: str, stay: bool = False) -> None:
    """Leave a plain child, and one that forked twice and has its own session."""
    plain = subprocess.Popen(["sleep", "600"])
    script = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
    script += f"  open({path!r}, 'w').write(str(os.getpid()))\n  time.sleep(600)\nos._exit(0)"
    subprocess.run([sys.executable, "-c", script], check=True)
    while not Path(path).exists() or not Path(path).read_text():
        time.sleep(0.01)
    Path(path + ".plain").write_text(str(plain.pid))
    while stay:
        time.sleep(1)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@app.task(backoff=0)
def kill_parent(how: str = "alone", path: str | None = None) -> None:
    """Kill the parent: alone, with its process group, or after leaving a daemon behind."""
    print("about to kill", flush=True)
    parent = os.getppid()
    match how:
        case "alone":
            os.kill(parent, signal.SIGKILL)
        case "with its group":
            os.killpg(os.getpgid(parent), signal.SIGKILL)
        case _:
            leave_a_daemon.function(str(path))
            os.kill(parent, signal.SIGKILL)
    time.sleep(600)


@app.task
def kill_zygote() -> None:
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    time.sleep(600)


@app.task
def kill_every_zygote() -> None:
    """Kill the zygote, and each one that replaces it."""
    zygote = parent_of(os.getppid())
    supervisor = parent_of(zygote)
    while True:
        for pid in linux.children_of(supervisor):
            if linux.has_executed(pid) and b"outlive.child.zygote" in linux.read(f"/proc/{pid}/cmdline"):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


@app.task
def kill_parent_after_the_end(path: str) -> None:
    """Don't exit after the job, and kill the parent when the file is there."""

    def stay(status: int) -> None:
        while not Path(path).exists():
            time.sleep(0.001)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    vars(sys.modules["__main__"])["_exit"] = stay


@app.task
def flood(megabytes: int) -> str:
    block = b"x" * 1_000_000
    for _ in range(megabytes):
        os.write(1, block)
    os.write(1, b"the end")
    return "done"


@app.task(max_attempts=1)
def return_this(kind: str) -> object:
    match kind:
        case "huge":
            return "x" * 50_000_000
        case "nan":
            return float("nan")
        case "nul":
            return "a\0b"
        case "surrogate":
            return "\ud800"
        case "object":
            return object()
        case _:
            return {1, 2, 3}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("nor that")

    __hash__ = None  # type: ignore[assignment]


@app.task(max_attempts=1)
def raise_unprintable() -> None:
    raise Unprintable


class Unreadable(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("not even its traceback")


@app.task(max_attempts=1)
def raise_unreadable() -> None:
    raise Unreadable


@app.task(max_attempts=1)
def raise_huge() -> None:
    raise ValueError("y" * 20_000_000 + "\0\ud800")


@app.task(max_attempts=1)
def exhaust_descriptors() -> int:
    kept = []
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return len(kept)


@app.task(recycle_after=10000)
def descriptors_of_a_program() -> list[int]:
    """The open files of a program that is started as `os.system` does it, beside the folder that it lists."""
    listing = "import os; print(*os.listdir('/proc/self/fd'))"
    words = [sys.executable, "-I", "-S", "-c", listing]
    return sorted(map(int, subprocess.run(words, check=True, close_fds=False, stdout=subprocess.PIPE).stdout.split()))


@app.task(backoff=0)
def step_by_step(steps: int) -> object:
    context = outlive.current()
    start = context.last_checkpoint or 0
    assert isinstance(start, int)
    context.progress(start + 1, steps, f"step {start + 1}")
    context.checkpoint(start + 1)
    if start + 1 < steps:
        raise ValueError("one step at a time")
    return [context.attempt, context.last_checkpoint]


@app.task
def nap(seconds: float) -> None:
    time.sleep(seconds)


@app.task
def wait_for(path: str) -> str:
    """Run until a file is there, or until told to stop."""
    Path(path + f".{os.getpid()}.started").touch()
    context = outlive.current()
    while not Path(path).exists():
        if context.stopping:
            return "stopped by itself"
        time.sleep(0.01)
    return "seen"


@app.task(timeout=0.5, max_attempts=1)
def return_late() -> str:
    """Return something after its time is over, before it is killed."""
    try:
        time.sleep(600)
    except outlive.Stopped:
        outlive.current().checkpoint("half")
        outlive.current().record("shop", "price", 7)
    return "half"


@app.task
def clean_up(path: str) -> None:
    """Ignore `stopping`; SIGTERM raises Stopped, and `finally` runs."""
    Path(path + ".started").touch()
    try:
        time.sleep(600)
    finally:
        Path(path).write_text("cleaned up")


@app.task
def spawn_more(n: int) -> list[object]:
    jobs = [add.enqueue(i, i) for i in range(n)]
    return [*(str(job.id) for job in jobs), add.enqueue(20, 22).result(timeout=20)]


@app.task
async def gather_more(n: int) -> list[int]:
    jobs = [add.enqueue(i, i) for i in range(n)]
    with contextlib.suppress(TimeoutError):
        add.using(delay="1h").enqueue(1, 1).result(timeout=0)
    return outlive.gather(jobs, timeout=20) + await outlive.agather(jobs, timeout=20)


@app.task(max_attempts=3)
def retry_after(seconds: float) -> None:
    raise outlive.Retry("later", after=seconds)


class HalfMade(outlive.Retry):
    """Lacks what `Retry` sets."""

    def __init__(self) -> None:
        pass


@app.task(max_attempts=1)
def raise_odd(kind: str) -> None:
    """Raise an exception whose delay can't be read, or which has none."""
    match kind:
        case "long retry":
            raise outlive.Retry("x" * 100_000, after="soon")
        case "half made":
            raise HalfMade
        case "paused":
            raise outlive.SourcePaused("closed", after_s="soon" if outlive.current().attempt == 1 else "1h")  # type: ignore[arg-type]


@app.task
def give_up() -> None:
    raise outlive.Fail("never again")


@app.task
def not_needed() -> None:
    raise outlive.Cancel("another job did it")


@app.task(recycle_after=2)
def lukewarm() -> int:
    return os.getpid()


@app.task
def own_command() -> str:
    return Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode()


@app.task(preload=False)
def own_command_cold() -> str:
    return Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode()


@app.task(backoff=0)
def complain_and_exit(code: int) -> None:
    print("the complaint on stderr", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)


@app.task
def flood_for_ever(path: str) -> None:
    Path(path).touch()
    while True:
        os.write(2, b"flood" * 10_000)


@app.task(memory="64MB", max_crashes=1)
def feed_a_grandchild() -> None:
    script = "import time\neaten = []\nwhile True:\n eaten.append(b'x' * 4_000_000)\n time.sleep(0.01)"
    subprocess.run([sys.executable, "-c", script], check=True)


@app.task(memory="64MB", max_crashes=1)
def start_many(processes: int, bytes_each: int, hold_s: float) -> int:
    """Start many processes, each of which has memory of its own for some seconds."""
    started = []
    for _ in range(processes):
        started.append(os.fork())
        if started[-1] == 0:
            held = b"x" * bytes_each
            time.sleep(hold_s)
            os._exit(len(held) and 0)
    return sum(os.waitpid(pid, 0)[1] for pid in started)


@app.task(memory="64MB", max_crashes=1, max_attempts=1)
def feed_a_process(path: str) -> None:
    """Start a process that eats memory when the path is there, and fail when it is killed."""
    while not Path(path).exists():
        time.sleep(0.001)
    subprocess.run([sys.executable, "-c", "eaten = []\nwhile True: eaten.append(b'x' * 1_000_000)"], check=True)


@app.task(memory="64MB", max_crashes=1)
def fill_shared_memory(how: str, megabytes: int) -> int:
    """Take memory that is not the anonymous memory of any process, in small steps, and hold it for a while."""
    if how == "mmap":
        step = mmap.mmap(-1, megabytes << 20).write
    elif how == "mapped memfd":
        file = os.memfd_create("eaten")
        os.ftruncate(file, megabytes << 20)
        step = mmap.mmap(file, megabytes << 20).write
    else:
        file = os.memfd_create("eaten") if how == "memfd" else os.open(how, os.O_CREAT | os.O_WRONLY)
        step = partial(os.write, file)
    for _ in range(megabytes):
        step(b"x" * (1 << 20))
        time.sleep(0.01)
    time.sleep(0.5)
    return megabytes


@app.task(memory="64MB", max_crashes=1)
def leave_in_shared_memory(folder: str, megabytes: int) -> int:
    """Leave many files, none of which is open for longer than a moment."""
    for n in range(megabytes):
        Path(folder, str(n)).write_bytes(b"x" * (1 << 20))
        time.sleep(0.005)
    return megabytes


@app.task(memory="64MB", max_crashes=1)
def copy_a_file(path: str) -> str:
    """Fill the group of the job with page cache, again and again: it gets the group some time after its beginning."""
    started = Path(path + f".{os.getpid()}.started")
    while not Path(path).exists():
        with Path(path + ".copy").open("wb") as file:
            for _ in range(150):
                file.write(b"x" * (1 << 20))
        started.touch()
    return "seen"


@app.task(max_crashes=1, max_losses=1)
def eat_without_limit(oom_score: int | None = None) -> None:
    """Only root may lower the score."""
    if oom_score is not None:
        Path("/proc/self/oom_score_adj").write_text(str(oom_score))
    eaten = []
    while True:
        eaten.append(b"x" * 4_000_000)
        time.sleep(0.01)


@app.task(memory="64MB", max_crashes=1)
def attach_shared_memory(name: str, how: str) -> int:
    """Wait for a file that another process makes in memory, and use it for a while."""
    while not Path(name).exists():
        time.sleep(0.01)
    with open(name, "rb" if how == "read" else "r+b") as file:
        until = time.monotonic() + 1
        if how == "open":
            time.sleep(1)
            return 0
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | (0 if how == "read" else mmap.PROT_WRITE)) as mapped:
            while time.monotonic() < until:
                sum(mapped[:: mmap.PAGESIZE])
            return len(mapped)


@app.task(memory="64MB", max_crashes=1)
def read_shared_memory(name: str) -> int:
    """Open a large file of another process for reading and writing, and read it."""
    with open(name, "r+b") as file:
        time.sleep(0.3)
        return len(file.read(1 << 20))


@app.task(memory="64MB", max_crashes=1, recycle_after=100)
def eat_when_idle(megabytes: int) -> int:
    """Leave a thread in the warm process that goes on eating memory after the job has ended."""

    def eat() -> None:
        for _ in range(megabytes):
            kept.append(b"x" * 1_000_000)
            time.sleep(0.01)

    threading.Thread(target=eat, daemon=True).start()
    return os.getpid()


kept: list[bytes] = []


@app.task(memory="64MB", max_crashes=1, recycle_after=100)
def use_memory(megabytes: int, keep: bool = False) -> int:
    """Use memory in a warm process, and keep it for the next jobs if asked to."""
    used = b"x" * (megabytes * 1_000_000)
    if keep:
        kept.append(used)
    time.sleep(0.2)
    return os.getpid()


@app.task
def own_limits() -> list[int]:
    return [*resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_AS)[0]]


@app.task(stall=0.5, max_attempts=1)
def keep_moving(steps: int) -> str:
    for step in range(steps):
        outlive.current().progress(step, steps)
        time.sleep(0.1)
    return "moved"


@app.task
def show_progress(path: str) -> None:
    outlive.current().progress(3, 10, "page 3")
    while not Path(path).exists():
        time.sleep(0.01)


@app.task
def stop_with_progress(path: str) -> str:
    """Save a checkpoint right before the end, in a worker that is about to stop."""
    Path(path).touch()
    while not outlive.current().stopping:
        time.sleep(0.01)
    outlive.current().checkpoint("the last")
    return "told in time"


@app.task(timeout=None)
def ignore_all(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


@app.task(max_attempts=1, max_crashes=1)
def pay(url: str, how: str, hold_s: float = 0.0) -> None:
    """Write an effect and complete the job in the same transaction."""
    import psycopg  # Not at the top: every worker's start would take longer.

    with psycopg.connect(url) as connection:
        connection.execute("insert into effects values (%s)", [how])
        outlive.current().complete(connection, {"paid": how})
        time.sleep(hold_s)
        match how:
            case "roll back":
                connection.rollback()
            case "raise":
                raise ValueError("after the completion")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)


@app.task(max_attempts=1, max_crashes=1)
async def pay_async(url: str, verb: str) -> None:
    """Do the same on an async connection."""
    import psycopg

    print("paying")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("insert into effects values (%s)", [verb])
        if verb == "acomplete":
            await outlive.current().acomplete(connection, {"paid": verb})
        else:
            outlive.current().complete(connection, {"paid": verb})  # type: ignore[arg-type]


@app.task(backoff=0)
def pay_too_much(url: str, size_bytes: int) -> None:
    """Complete the job with a result that is over the limit."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("insert into effects values ('too much')")
        outlive.current().complete(connection, "x" * size_bytes)


@app.task
def seen_addresses() -> list[str | None]:
    """The addresses of the database that a job can see, and whether the queue answers it without one."""
    return [os.environ.get("OUTLIVE_DATABASE_URL"), app.config.database_url, str(add.enqueue(1, 1).status())]


@app.task
def variables_of_systemd() -> list[str]:
    """The variables by which a job could speak for its worker."""
    return [name for name in os.environ if name.startswith(("NOTIFY_", "WATCHDOG_"))]


@app.task(recycle_after=10000)
def leave_a_mark(folder: str, n: int) -> None:
    """Append one byte to a file."""
    with Path(folder, str(n)).open("ab") as file:
        file.write(b"x")


@app.task(backoff=0, retry_on=KeyError, fail_on=LookupError, max_attempts=3)
def look_up(kind: str) -> None:
    raise {"key": KeyError, "index": IndexError, "other": ValueError}[kind](kind)


@app.task(backoff=0)
def fail_always() -> None:
    raise RuntimeError("as always")


@app.task(backoff=0)
def third_time_lucky() -> str:
    """Raise, then kill the process, then succeed."""
    context = outlive.current()
    print(f"this is attempt {context.attempt}", flush=True)
    if context.attempt == 1:
        raise ValueError("not the first time")
    if context.attempt == 2:
        ctypes.string_at(0)
    context.progress(1, 1, "lucky")
    return "lucky"


@app.task
def draw() -> float:
    return random.random()


@app.task
def own_oom_score() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


@app.task
def echo(text: str) -> str:
    return text


@app.task
def length_of(text: str) -> int:
    return len(text)


@app.task(recycle_after=10)
def length_of_warm(text: str) -> int:
    return len(text)


@app.task(max_attempts=1, max_crashes=1)
def say_garbage(kind: str) -> None:
    """Write nonsense to the child's socket."""
    token = outlive.current().token
    said = {
        "noise": b"\0\0\0\5noise",
        "long frame": b"\xff" * 100_000,
        "wrong token": encode_frame(Done(token + 1, Outcome.SUCCEEDED)),
        "no outcome": encode_frame(Done(token, "excellent")),  # type: ignore[arg-type]
        "no json": encode_frame(Done(token, Outcome.SUCCEEDED, result=b"{")),
        "deep json": encode_frame(Done(token, Outcome.SUCCEEDED, result=b"[" * 400_000 + b"]" * 400_000)),
        "no number": encode_frame(Done(token, Outcome.SUCCEEDED, peak_memory_bytes=2**63)),
        "bad progress": encode_frame(Progress(token, None, None, "a\0b")),
    }[kind]
    for path in sockets_of(os.getpid()):
        os.write(int(Path(path).name), said)
    if kind != "bad progress":
        time.sleep(600)


@app.task(max_attempts=1)
def say_too_much(kind: str, megabytes: int) -> str:
    text = "m" * (megabytes * 1_000_000)
    match kind:
        case "result":
            return text
        case "error":
            raise ValueError(text)
        case "cause":
            raise RuntimeError("see its cause") from ValueError(text)
        case "checkpoint":
            outlive.current().checkpoint(text)
        case _:
            outlive.current().progress(message=text)
    return "said"


@app.task(max_attempts=1)
def close_output() -> str:
    os.close(1)
    os.close(2)
    return "quiet"


@app.task(recycle_after=50, backoff=0)
def work_a_little(n: int) -> int:
    time.sleep(0.005)
    return n


@app.task
def open_sockets() -> list[str]:
    """The sockets of this process, of its parent and of the zygote."""
    return [path for pid in (os.getpid(), os.getppid(), parent_of(os.getppid())) for path in sockets_of(pid)]


def sockets_of(pid: int) -> list[str]:
    paths = [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return [path for path in paths if os.path.islink(path) and os.readlink(path).startswith("socket:")]


@app.task(recycle_after=100)
def wait_warm(path: str) -> int:
    Path(path + ".started").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@app.task(timeout=0.5, max_attempts=1)
def stop_parent() -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


@app.task
def keep_stopping_parent() -> None:
    """The worker continues it now and then, for a moment each time."""
    while True:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(0.0005)


@app.task
def orphan_and_wait(path: str) -> None:
    """Leave grandchildren, and stay."""
    leave_grandchildren.function(path)
    time.sleep(600)


@app.task
def take_all_down() -> None:
    """Kill the worker and all its processes, as the end of a container does: the supervisor first."""
    zygote = parent_of(os.getppid())
    os.kill(parent_of(zygote), signal.SIGKILL)
    os.kill(zygote, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


@app.task(backoff=0)
def signal_worker(*how: str) -> None:
    """Send a signal to the supervisor, at each attempt another: from the job's own process, or from one left behind."""
    supervisor, name = parent_of(parent_of(os.getppid())), how[outlive.current().attempt - 1]
    if name == "SIGTERM":
        os.kill(supervisor, signal.SIGTERM)
    elif os.fork() == 0:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        if name == "SIGCONT":
            os.kill(supervisor, signal.SIGSTOP)
            time.sleep(0.3)
        os.kill(supervisor, signal.Signals[name])
    time.sleep(600)


@app.task
def blocked_signals() -> str:
    return Path("/proc/self/status").read_text().split("SigBlk:")[1].split()[0]


@app.task(backoff=0, quarantine_by="fingerprint")
def known_killer(what: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task
def ask_for(key: str) -> None:
    add.using(dedupe_key=key).enqueue(1, 1)


@app.task
def spawn(key: str) -> None:
    outlive.current().spawn(add.using(dedupe_key=key).job(1, 1))


@app.task
def spawn_many(n: int) -> int:
    context, later = outlive.current(), add.using(delay="1h", queue="later")
    for number in range(n):
        context.spawn(later.job(number, number))
    return n


@app.task
def find(key: str) -> None:
    outlive.current().record("prices", key, {"price": 1})


@app.task
def spoil_a_record() -> None:
    """Write a record that turns out to be unencodable at the end of the job."""
    found: dict[str, object] = {"price": 1}
    outlive.current().record("prices", "a", found)
    found["price"] = object()


@app.task(recycle_after=10)
def leave_a_thread(path: str) -> int:
    """Leave a thread that enqueues while no job runs; the next job waits for its answer."""

    def ask() -> None:
        while not Path(path).exists():
            time.sleep(0.01)
        Path(path + ".asks").touch()
        add.enqueue(1, 1)
        Path(path + ".asked").touch()

    if Path(path).exists():
        while not Path(path + ".asked").exists():
            time.sleep(0.01)
    else:
        threading.Thread(target=ask, daemon=True).start()
    return os.getpid()


def fork_a_copy(how: str) -> int:
    """Fork a copy that leaves the job's code before the job does; returns the copy's exit code."""
    copy = os.fork()
    if copy == 0:
        match how:
            case "exits":
                sys.exit(5)
            case "raises":
                raise ValueError("only a copy")
            case "reports":
                outlive.current().progress(99, 100, "from the copy")
            case "asks":
                add.using(dedupe_key="from the copy").enqueue(1, 1)
        return -1
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


@app.task(max_attempts=1, max_crashes=1, timeout=20)
def fork_fresh(how: str) -> list[int]:
    return [fork_a_copy(how), os.getpid()]


@app.task(max_attempts=1, max_crashes=1, timeout=20, recycle_after=100)
def fork_warm(how: str) -> list[int]:
    return [fork_a_copy(how), os.getpid()]


@app.task(max_attempts=1, max_crashes=1, timeout=20)
async def fork_async(how: str) -> list[int]:
    import asyncio

    code = fork_a_copy(how)
    if code >= 0:  # A copy has no running event loop, says asyncio.
        await asyncio.sleep(0.1)
    return [code, os.getpid()]


def report_from_a_pool(step: int) -> str:
    try:
        outlive.current().progress(step)
    except outlive.OutliveError as error:
        return str(error)
    return "reported"


@app.task(max_attempts=1)
def use_a_pool() -> str:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        refused = pool.apply(report_from_a_pool, (1,))
    outlive.current().progress(2, 2, "from the job")
    return refused


def say(message: Frame) -> None:
    """Send a frame past the checks of this side, as a forger does."""
    gateway = job_gateway.gateway
    assert isinstance(gateway, Channel)
    gateway._socket.sendall(encode_frame(message))


def say_checkpoint(token: int, value: bytes) -> None:
    kept = msgspec.msgpack.encode(KeptStep(CHECKPOINT, value, None, None, relaxed=True, token=token))
    say(Call(0, CHECKPOINT, kept, token))


@app.task(backoff=0)
def keep_a_checkpoint(path: str) -> object:
    """Save a checkpoint, and write the token to a file; the second attempt returns the checkpoint that it finds."""
    context = outlive.current()
    if context.last_checkpoint is None:
        context.checkpoint({"page": 7})
        Path(path + ".token").write_text(str(context.token))
        while not Path(path).exists():
            time.sleep(0.01)
        raise ValueError("again")
    return context.last_checkpoint


@app.task
def forge_progress(token: int) -> None:
    say(Progress(token, 99.0, 100.0, "forged"))
    say_checkpoint(token, b'{"page": "forged"}')
    say(Call(1, "complete", b"%d" % token))


@app.task(timeout=None)
def spoil_progress(path: str) -> None:
    """Send checkpoints that are not JSON, or that Postgres refuses, until the file is there."""
    token = outlive.current().token
    while not Path(path).exists():
        for checkpoint in (b"{no json", b'"\xff"', b"[" * 5000 + b"]" * 5000):
            say(Progress(token, None, None, "a\0b"))
            say_checkpoint(token, checkpoint)
            time.sleep(0.05)


@app.task(recycle_after=10000, max_crashes=1)
def babble(where: str = "") -> None:
    """Write garbage into a descriptor of the child: its socket, or its tickets."""
    gateway = job_gateway.gateway
    assert isinstance(gateway, Channel)
    if where == "socket":
        gateway._socket.sendall(b"\xff" * 8)
    elif where == "tickets":
        os.write(gateway.tickets, b"abc")
    elif where == "tickets, opened again":
        with open(f"/proc/self/fd/{gateway.tickets}", "wb", buffering=0) as tickets:
            tickets.write(b"abc")
        os._exit(1)


@app.task(max_attempts=1)
def ask_nonsense() -> list[str]:
    """Send calls that can't be read; returns the answer to each."""
    short = msgspec.msgpack.Ext(1, b"short")
    bodies = [b"", b"\xff", [("statuses", [short])], [("statuses", [{"a": 1}])], [("ask_source", [])], [("drop", [])]]
    gateway = job_gateway.gateway
    assert gateway is not None
    said = []
    for body in bodies:
        try:
            gateway.call("run", body if isinstance(body, bytes) else msgspec.msgpack.encode(body))
            said.append("done")
        except outlive.OutliveError as error:
            said.append(type(error).__name__)
    return said


@app.task(max_attempts=1, max_crashes=1)
def flood_with_calls(count: int) -> None:
    body = msgspec.msgpack.encode([("list_records", [None, None, 1])])
    for number in range(1, count + 1):
        say(Call(number, "run", body))
    time.sleep(600)


@app.task(max_losses=1, max_crashes=1)
def flood_and_kill(path: str, whom: str) -> None:
    """Kill the parent or the zygote while a copy sends correct frames without end."""
    gateway = job_gateway.gateway
    assert isinstance(gateway, Channel)
    some = 1000 * encode_frame(Progress(outlive.current().token, 1.0, None, None))
    if os.fork() == 0:
        os.setsid()
        while True:
            gateway._socket.sendall(some)
    time.sleep(0.3)
    Path(path).touch()
    os.kill(os.getppid() if whom == "parent" else parent_of(os.getppid()), signal.SIGKILL)
    time.sleep(600)


@app.task(timeout=None)
def flood_with_progress(path: str) -> None:
    gateway = job_gateway.gateway
    assert isinstance(gateway, Channel)
    some = 1000 * encode_frame(Progress(outlive.current().token, 1.0, None, None))
    Path(path).touch()
    while True:
        gateway._socket.sendall(some)


@app.task(max_attempts=1, max_crashes=1)
def say_large(kind: str, megabytes: int) -> None:
    """Send as many bytes as a job may, or more."""
    token = outlive.current().token
    data = b'"' + b"x" * (megabytes * 1_000_000) + b'"'
    match kind:
        case "checkpoint":
            for _ in range(3):
                say_checkpoint(token, data)
        case "result":
            say(Done(token, Outcome.SUCCEEDED, result=data))
        case "error":
            say(Done(token, Outcome.FAILED, error=data.decode()))
        case "records":
            for n in range(megabytes):
                outlive.current().record("large", f"{token} {n}", "x" * 1_000_000)
            return
        case "call":
            app.enqueue_many(length_of.job("x" * 1_000_000) for _ in range(megabytes))
            return
    time.sleep(600)


@app.task
def stay_after_the_end(how: str) -> int:
    """Replace the function that ends the process: Python's, or the reference that the child's loop keeps."""
    if how == "os._exit":
        os._exit = lambda status: None  # type: ignore[assignment, return-value]
    else:
        vars(sys.modules["__main__"])["_exit"] = lambda status: time.sleep(600)
    return os.getpid()


@app.task(recycle_after=100)
def stay_warm_for_ever() -> int:
    """Leave a thread that holds the interpreter, so that the child reads nothing more."""

    def hold_the_interpreter() -> None:
        time.sleep(0.3)
        ctypes.PyDLL(None).sleep(600)

    threading.Thread(target=hold_the_interpreter, daemon=True).start()
    return os.getpid()


@app.task(max_losses=1)
def leave_a_daemon(path: str, stay: bool = False) -> None:
    """Leave a process that has forked twice, with its own session and an empty environment."""
    script = "import os, sys, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
    script += "  open(sys.argv[1], 'w').write(str(os.getpid()))\n  time.sleep(600)\nos._exit(0)"
    subprocess.run([sys.executable, "-I", "-S", "-c", script, path], check=True, env={})
    while not Path(path).exists() or not Path(path).read_text():
        time.sleep(0.01)
    while stay:
        time.sleep(1)


@app.task
def leave_a_process_of_roots(become_root: str) -> int:
    """Leave a process of root's behind, as `sudo … &` does."""
    words = [become_root, "--reuid=0", "--regid=0", "--clear-groups", "setsid", "sleep", "60"]
    left = subprocess.Popen(words)
    while "sleep" not in Path(f"/proc/{left.pid}/comm").read_text():
        time.sleep(0.01)
    return left.pid
