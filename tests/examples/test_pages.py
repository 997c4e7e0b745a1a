"""The crawler of examples/pages: real browsers, and pages that hang, crash them and eat memory."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive.model import Attempt
from outlive.states import Outcome, State
from pages import site, tasks
from tests.driving import pages as how_to
from tests.driving.jobs import attempts, finished
from tests.driving.workers import ROOT, Start, Worker, alive, cmdline
from tests.waiting import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium")
KILLS = {"/crash": (Outcome.CRASHED, "SIGABRT"), "/leak": (Outcome.OUT_OF_MEMORY, "SIGKILL")}


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder for the files of browsers, with a short path: they put a socket there."""
    with tempfile.TemporaryDirectory(prefix="pages-", dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def worker(room: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setenv("TMPDIR", str(room))
    return start(slots=2, target="pages.tasks:app", folder=ROOT / "examples", cache_dir=str(tmp_path / "cache"))


def browsers(folder: Path) -> list[int]:
    """The processes of browsers that have their files in this folder."""
    everyone = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in everyone if alive(pid) and b"chrom" in (said := cmdline(pid)) and bytes(folder) in said]


def evidence(one: Attempt) -> tuple[Outcome, str | None]:
    return one.outcome, one.signal


@pytest.mark.timeout(180)
def test_a_page_that_kills_its_browser_ends_its_own_visit_and_no_other(worker, queue, room):
    with site.serve(good=2) as served:
        poison = tasks.visit.using(memory="700MB", max_attempts=1, max_crashes=1)
        waits_s = {"/hang": 3, "/crash": 60, "/leak": 60}
        bad = {path: poison.using(timeout=s).enqueue(served.url + path, 0) for path, s in waits_s.items()}
        good = [tasks.visit.enqueue(f"{served.url}/page/{n}", 0) for n in range(2)]
        assert [job.result(timeout=90) for job in good] == ["Page 0", "Page 1"]
        assert [len(attempts(queue, job)) for job in good] == [1, 1]
        ends = {path: finished(job, within_s=90) for path, job in bad.items()}
        assert ends == {"/hang": State.FAILED, "/crash": State.QUARANTINED, "/leak": State.QUARANTINED}
        last = {path: attempts(queue, job)[-1] for path, job in bad.items()}
        assert last["/hang"].outcome is Outcome.TIMED_OUT
        assert {path: evidence(last[path]) for path in KILLS} == KILLS
        assert "Page crashed" in (last["/crash"].output or "")
        fetched = served.requests["/page/0"]
        assert tasks.visit.enqueue(f"{served.url}/page/0", 0).result(timeout=60) == "Page 0"
        assert fetched == served.requests["/page/0"] == 1  # The second time it comes from the cache.
        assert [one.dedupe_key for one in tasks.app.records(tasks.PAGES)] == [
            f"{served.url}/page/{n}" for n in range(2)
        ]
    eventually(lambda: not browsers(room), within_s=5, what="no browser is left")


@pytest.mark.long
@pytest.mark.timeout(120)
def test_pages_without_scripts_are_fetched_and_the_others_get_a_browser(worker, queue):
    with site.serve(good=12, poison=()) as served:
        urls = [f"{served.url}/page/{n}" for n in range(12)]
        jobs = tasks.app.enqueue_many([tasks.fetch.job(url, 0) for url in urls])
        titles = [job.result(timeout=60) for job in jobs]
        assert titles == [f"Page {n}" if n % 2 == 0 else "" for n in range(12)], "those with scripts are handed over"
        eventually(lambda: len(tasks.app.records(tasks.PAGES)) == 12, within_s=60, what="all pages are kept")
        kept = {one.dedupe_key: one.data["title"] for one in tasks.app.records(tasks.PAGES)}
        assert kept == {url: f"Page {n}" for n, url in enumerate(urls)}
        visited = queue.values("select args ->> 'url' from outlive.jobs where task = 'pages.tasks.visit' order by 1")
        assert visited == sorted(urls[1::2])
        missing = tasks.fetch.using(max_attempts=1).enqueue(f"{served.url}/nowhere", 0)
        assert finished(missing, within_s=30) is State.FAILED
        assert attempts(queue, missing)[-1].error == f"ConnectionError: {served.url}/nowhere answers 404"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_of_crawling_does_what_it_says_and_every_good_page_is_kept_once(
    room, database_url, queue, tmp_path, free_port
):
    """All pages are visited through the links of the first one; the killers kill three times."""
    (tmp_path / "pages").symlink_to(ROOT / "examples" / "pages")
    place = f"http://127.0.0.1:{free_port}"
    words = {"TMPDIR": str(room), "PAGES_SITE": place, "OUTLIVE_CACHE_DIR": str(tmp_path / "cache")}
    with how_to.shell(tmp_path, database_url, **words) as shell:
        how_to.run("how-to/crawl.md", shell, tmp_path, database_url)
        good = [f"{place}/", *(f"{place}/page/{n}" for n in range(6))]
        assert queue.values("select dedupe_key from outlive.records order by 1") == good
        ended = queue.execute(
            "select j.task, j.args ->> 'url', array_agg(a.outcome order by a.attempt) from outlive.attempts a"
            " join outlive.jobs j on j.id = a.job_id group by j.id, j.task, j.args ->> 'url' order by 1"
        ).fetchall()
    bad = {"crash": ["crashed"] * 3, "hang": ["timed_out"] * 2, "leak": ["out_of_memory"] * 3}
    fetched = [url for task, url, outcomes in ended if task == tasks.fetch.name and outcomes == ["succeeded"]]
    assert sorted(fetched) == sorted([*good, *(f"{place}/{path}" for path in bad)])
    assert {url: outcomes for task, url, outcomes in ended if task == tasks.visit.name} == {
        **{f"{place}/page/{n}": ["succeeded"] for n in (1, 3, 5)},
        **{f"{place}/{path}": outcomes for path, outcomes in bad.items()},
    }
    assert len(ended) == len(good) + 3 + 6
    eventually(lambda: not browsers(room), within_s=5, what="no browser is left")
