"""The cache: asked once by many, kept for a while, never larger than its bound, and never a reason to fail."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlive import App, config
from outlive.client.cache import Cache, key_of
from outlive.errors import BadArguments
from tests.driving.folders import open_folder
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def new(directory: Path, *, ttl_s: float = 3600.0, bound_bytes: int = 10_000_000, enabled: bool = True) -> Cache:
    return Cache(directory, ttl_s=ttl_s, bound_bytes=bound_bytes, enabled=enabled)


class Counted:
    """A source that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


@pytest.fixture
def fetch() -> Counted:
    return Counted()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts processes that use the cache, and ends them after the test."""
    made: list[subprocess.Popen[str]] = []

    def start(what: str) -> "subprocess.Popen[str]":
        words = [sys.executable, "-m", "tests.client.fetching", what, str(tmp_path)]
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        made.append(subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def calls(directory: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(line) for line in (directory / "calls").read_text().split()]
    return []


def ready(directory: Path) -> int:
    return len(list(directory.glob("ready.*")))


# One call


def test_of_ten_processes_that_want_the_same_one_calls_the_source(tmp_path, begin):
    processes = [begin("ask") for _ in range(10)]
    eventually(lambda: ready(tmp_path) == 10 and calls(tmp_path), within_s=60)
    (tmp_path / "go").touch()
    assert [process.communicate(timeout=60)[0] for process in processes] == ["answer\n"] * 10
    assert len(calls(tmp_path)) == 1


def test_a_process_that_is_killed_while_it_fetches_leaves_that_to_another(tmp_path, begin):
    first = begin("ask")
    eventually(lambda: calls(tmp_path) == [first.pid], within_s=60)
    others = [begin("ask") for _ in range(3)]
    eventually(lambda: ready(tmp_path) == 4, within_s=60)
    assert calls(tmp_path) == [first.pid]
    first.kill()
    eventually(lambda: len(calls(tmp_path)) == 2, within_s=20)
    (tmp_path / "go").touch()
    assert [process.communicate(timeout=60)[0] for process in others] == ["answer\n"] * 3
    assert len(calls(tmp_path)) == 2


def test_both_sides_of_a_fork_can_go_on_with_it(tmp_path, begin):
    assert begin("fork").communicate(timeout=60)[0] == "kept\n"


def test_of_many_coroutines_that_want_the_same_one_calls_the_source(tmp_path):
    made = 0

    async def slowly() -> int:
        nonlocal made
        made += 1
        await asyncio.wait_for(others_wait.wait(), 20)
        return made

    async def others() -> int:
        """Ask for all five before this one has its first turn."""
        others_wait.set()
        return 0

    async def ask() -> list[int]:
        source = app.source("shop")
        *answers, _ = await asyncio.gather(*[source.cached({"page": 1}, slowly) for _ in range(5)], others())
        return answers

    others_wait = asyncio.Event()
    app = App()
    app.configure(config.load(environ={"OUTLIVE_CACHE_DIR": str(tmp_path)}))
    assert asyncio.run(ask()) == [1] * 5
    assert app.source("shop").cached({"page": 1}, lambda: 7) == 1, "sync and async share their answers"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["coroutine", "future"])
def test_a_plain_function_that_gives_an_awaitable_is_refused(tmp_path, kind):
    async def fetch() -> int:
        raise AssertionError("it is not awaited")

    async def ask() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        with pytest.raises(BadArguments, match="pass the async function itself"):
            await app.source("shop").cached("key", lambda: fetch() if kind == "coroutine" else future)

    app = App()
    app.configure(config.load(environ={"OUTLIVE_CACHE_DIR": str(tmp_path)}))
    asyncio.run(ask())
    assert app.source("shop").cached("key", lambda: 7) == 7, "nothing was kept"


def test_an_answer_that_cannot_be_had_is_not_kept(tmp_path, fetch):
    def broken() -> int:
        raise ConnectionError("no")

    cache = new(tmp_path)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            cache.get("shop", "key", broken)
    assert cache.get("shop", "key", fetch) == 1


# Keys and time


def test_an_answer_survives_the_process_that_fetched_it(tmp_path, fetch):
    first = new(tmp_path)
    assert [first.get("shop", "key", fetch) for _ in range(3)] == [1, 1, 1]
    first.close()
    assert new(tmp_path).get("shop", "key", fetch) == 1


def test_a_key_is_the_source_and_its_parts_in_whatever_order_they_are_named():
    assert key_of("shop", {"a": 1, "b": 2}) == key_of("shop", {"b": 2, "a": 1})
    assert key_of("shop", ("a", 1)) == key_of("shop", ["a", 1])
    different = [
        *(("shop", "a"), ("bank", "a"), ("shop", ["a"]), ("shop", ["a", "b"]), ("shop", ["b", "a"]), ("sho", "pa")),
    ]
    assert len({key_of(*one) for one in different}) == len(different)


def test_an_expired_answer_is_fetched_again(tmp_path, fetch):
    cache = new(tmp_path)
    assert cache.get("shop", "key", fetch, ttl_s=0.2) == 1
    eventually(lambda: cache.get("shop", "key", fetch) == 2)
    assert cache.get("shop", "key", fetch) == 2


def test_answers_are_kept_for_an_hour_unless_it_is_said_otherwise(tmp_path, fetch):
    def kept_for_s(**environ: str) -> float:
        directory = tmp_path / str(len(environ))
        Cache.of(config.load(environ={"OUTLIVE_CACHE_DIR": str(directory), **environ})).get("shop", "key", fetch)
        with contextlib.closing(sqlite3.connect(directory / "cache.sqlite")) as file:
            ((expires_at,),) = file.execute("select expires_at from entries").fetchall()
        return float(expires_at) - time.time()

    assert 3590 < kept_for_s() <= 3600
    assert 50 < kept_for_s(CACHE_TTL_SECONDS="60") <= 60


def test_a_cache_that_is_switched_off_is_not_there(tmp_path, fetch):
    directory = tmp_path / "cache"
    off = Cache.of(config.load(environ={"OUTLIVE_CACHE_DIR": str(directory), "CACHE_ENABLED": "false"}))
    assert [off.get("shop", "key", fetch) for _ in range(2)] == [1, 2]

    async def afetch() -> int:
        return fetch()

    assert asyncio.run(off.aget("shop", "key", afetch)) == 3
    assert not directory.exists()


# The bound


def test_the_cache_stays_within_its_bound_and_drops_the_answers_that_expire_soonest(tmp_path: Path) -> None:
    cache = new(tmp_path, bound_bytes=400_000)
    for n in range(150):
        cache.get("shop", n, lambda n=n: f"{n:04}" * 2500, ttl_s=1000 + n)  # type: ignore[misc]
        used_bytes = sum(path.stat().st_size for path in tmp_path.glob("cache.sqlite"))
        assert used_bytes <= 400_000 + 20_000
    missing: list[int] = []
    for n in range(150):
        cache.get("shop", n, lambda n=n: missing.append(n))  # type: ignore[misc]
    assert missing == list(range(len(missing)))
    assert 100 < len(missing) < 140


def test_an_answer_that_would_fill_the_cache_is_not_kept(tmp_path, fetch):
    cache = new(tmp_path, bound_bytes=100_000)
    assert cache.get("shop", "key", fetch) == 1
    assert len(cache.get("shop", "large", lambda: "x" * 30_000)) == 30_000
    assert cache.get("shop", "large", fetch) == 2
    assert cache.get("shop", "key", fetch) == 1


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", (1, 2)], ids=repr)
def test_an_answer_that_json_does_not_have_is_given_and_not_kept(tmp_path, value, fetch, caplog):
    cache = new(tmp_path)
    assert cache.get("shop", "key", lambda: value) is value
    assert "can't be cached" in caplog.text
    assert cache.get("shop", "key", fetch) == 1


# Whatever is wrong with the file


def damage(file: Path, how: str) -> None:
    match how:
        case "no database":
            file.write_bytes(b"this is no database" * 1000)
        case "empty":
            file.write_bytes(b"")
        case "cut":
            os.truncate(file, file.stat().st_size // 2)
        case "pages":
            data = bytearray(file.read_bytes())
            data[1024:] = os.urandom(len(data) - 1024)
            file.write_bytes(data)
        case "format":
            data = bytearray(file.read_bytes())
            data[44:48] = b"\xff" * 4
            file.write_bytes(data)
        case "values":
            with contextlib.closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("update entries set value = x'7b00ff'")
        case "letters":
            with contextlib.closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("update entries set value = x'22ff22'")
        case "types":
            with contextlib.closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("update entries set value = 7")
        case "tables":
            with contextlib.closing(sqlite3.connect(file)) as connection, connection:
                connection.execute("alter table entries drop column value")


@pytest.mark.parametrize(
    "how", ["no database", "empty", "cut", "pages", "format", "values", "letters", "types", "tables"]
)
def test_a_broken_file_costs_the_cache_and_not_the_job(tmp_path, fetch, how):
    before = new(tmp_path)
    for n in range(20):
        before.get("shop", n, lambda: "x" * 1000)
    assert before.get("shop", "key", fetch) == 1
    before.close()
    damage(tmp_path / "cache.sqlite", how)
    after = new(tmp_path)
    assert after.get("shop", "key", fetch) == 2
    assert after.get("shop", 3, fetch) in (3, "x" * 1000)
    if how != "tables":  # That is a sound database of another program: it is left alone.
        known = after.get("shop", "other", fetch)
        assert after.get("shop", "other", fetch) == known


def test_a_directory_that_cannot_be_made_costs_the_cache_and_one_warning(tmp_path, fetch, caplog):
    (tmp_path / "file").touch()
    cache = new(tmp_path / "file" / "cache")
    assert [cache.get("shop", "key", fetch) for _ in range(3)] == [1, 2, 3]
    assert len(caplog.records) == 1
    assert "can't be used, so answers are not cached" in caplog.text


@pytest.fixture
def without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's directory where the home can't be written, in a place for everybody's files. It is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"outlive-cache-{os.getuid()}"


def usual() -> Cache:
    return Cache.of(config.load(environ={}))


def test_where_the_home_cannot_be_written_the_cache_is_a_directory_closed_to_other_users(without_home, fetch, caplog):
    assert [usual().get("shop", "key", fetch) for _ in range(2)] == [1, 1]
    assert without_home.stat().st_mode & 0o777 == 0o700
    assert caplog.records == []


def lay_trap(trap: str, at: Path, elsewhere: Path) -> None:
    """Put a trap where the cache belongs, as another user might."""
    elsewhere.mkdir()
    match trap:
        case "a link":
            at.symlink_to(elsewhere)
        case "a link to nowhere":
            at.symlink_to(elsewhere / "nowhere")
        case "a file":
            at.touch(0o700)
        case "open to all":
            at.mkdir()
            at.chmod(0o777)
        case "open to a group":
            at.mkdir()
            at.chmod(0o770)
        case "of another user":
            at.mkdir(0o700)
            os.chown(at, 65534, 65534)


@pytest.mark.parametrize(
    "trap",
    [
        *("a link", "a link to nowhere", "a file", "open to all", "open to a group"),
        pytest.param(
            "of another user", marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give it away")
        ),
    ],
)
def test_a_directory_that_another_user_may_have_made_costs_the_cache_and_one_warning(
    without_home, tmp_path, trap, fetch, caplog
):
    lay_trap(trap, without_home, tmp_path / "elsewhere")
    cache = usual()
    assert [cache.get("shop", "key", fetch) for _ in range(3)] == [1, 2, 3]
    assert len(caplog.records) == 1
    assert "is not a private directory" in caplog.text
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can enter."""
    with open_folder() as folder:
        yield folder


def as_another_user(work: Callable[[], object]) -> str:
    """The result of `work` in a process of a user who is not root."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            said = repr(work())
        except BaseException as error:
            said = repr(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_cache_costs_the_cache_and_not_the_job(open_directory, what, fetch):
    before = new(open_directory)
    before.get("shop", "known", lambda: 0)
    before.close()
    for path in open_directory.iterdir():
        path.chmod(0o444)
    open_directory.chmod(0o777 if what == "file" else 0o555)
    assert as_another_user(lambda: [new(open_directory).get("shop", "key", fetch) for _ in range(2)]) == "[1, 2]"
