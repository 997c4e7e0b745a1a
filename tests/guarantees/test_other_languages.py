"""Workers in other languages, beside Python workers."""

import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

import pytest
from psycopg.conninfo import conninfo_to_dict

from outlive import State, linux, store
from outlive.states import Outcome
from tests import faults
from tests.driving import pages
from tests.driving.jobs import finished, outcomes
from tests.driving.making import Queue
from tests.driving.workers import ROOT, all_gone
from tests.waiting import eventually

EXAMPLE = ROOT / "examples" / "node"
INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--cache=cache", "--fetch-retries=0", "pg")
TASKS = """
const forever = () => new Promise((resolve) => setTimeout(resolve, 3_600_000))
export default {
  'tests.faults.add': ({ a, b }) => a + b,
  'tests.faults.own_pid': forever,
  'forever': forever,
  'steps': async ({}, step) => {
    const first = await step('first', () => process.pid)
    await step('second', () => process.pid !== first || process.kill(process.pid, 'SIGSEGV') && forever())
    return [await step('third', () => ({})), await step('bad', () => 'a\\0b').catch((error) => error.message)]
  },
  'segfault': () => process.kill(process.pid, 'SIGSEGV') && forever(),
  'unstorable': () => 'a\\0b',
  'fails': () => { throw new TypeError('no\\0t so') },
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the worker of the example and the library that it needs."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node or npm here: Debian's packages nodejs and npm")
    try:
        subprocess.run(INSTALL, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        pytest.skip(f"npm can't install pg: {error}")
    shutil.copy(EXAMPLE / "worker.mjs", tmp_path)
    return tmp_path


class Node:
    """A worker in Node, and its log."""

    def __init__(self, folder: Path, url: str) -> None:
        self._log = folder / "node.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                ["node", "worker.mjs", "./tasks.mjs"],
                cwd=folder,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "OUTLIVE_DATABASE_URL": url},
                stdout=output,
                stderr=output,
            )
        eventually(lambda: " started" in self._log.read_text(), within_s=30, what="the worker starts")
        self.id = UUID(self._log.read_text().split()[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


def as_url(conninfo: str) -> str:
    """An address as Node reads it."""
    parts = conninfo_to_dict(conninfo)
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={quote(str(parts['host']))}&port={parts['port']}"


def ask(queue: Queue, task: str) -> UUID:
    """Enqueue a job that Python workers don't know."""
    found = queue.value("select outlive.enqueue(%s, options => '{\"max_crashes\": 1}')", task)
    assert isinstance(found, UUID)
    return found


def settled(queue: Queue, job: UUID, wanted: State) -> dict[str, object]:
    """Wait until a job has this state; returns its last attempt."""
    eventually(lambda: queue.state_of(job) is wanted, within_s=20, what=f"{job} is {wanted}")
    return queue.row("select * from outlive.attempts where job_id = %s order by attempt desc limit 1", job)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_worker_in_node_is_killed_and_its_jobs_run_in_python_within_seconds(
    folder, database_url, queue, start, request
):
    """First the page of how-to is run as it stands. Its worker is told to stop, and says goodbye."""
    url = as_url(database_url)
    with pages.shell(folder, url) as shell:
        pages.run("how-to/other-languages.md", shell, folder, url)
    assert (folder / "tasks.mjs").read_text() == (EXAMPLE / "tasks.mjs").read_text()
    eventually(lambda: queue.values("select state from outlive.workers") == ["stopped"], what="it has stopped")
    (folder / "tasks.mjs").write_text(TASKS)
    node = Node(folder, url)
    request.addfinalizer(node.kill)
    held = [faults.own_pid.enqueue() for _ in range(3)]
    assert [faults.add.enqueue(n, b=1).result(timeout=30) for n in range(3)] == [1, 2, 3]
    crashed = settled(queue, ask(queue, "segfault"), State.QUARANTINED)
    assert (crashed["outcome"], crashed["signal"], crashed["worker"]) == ("crashed", "SIGSEGV", node.id)
    failed = settled(queue, ask(queue, "fails"), State.RETRYABLE)
    assert (failed["outcome"], failed["error"]) == ("failed", "TypeError: not so")
    assert "can't be stored" in str(settled(queue, ask(queue, "unstorable"), State.RETRYABLE)["error"])
    stepping = queue.value("select outlive.enqueue('steps')")
    settled(queue, stepping, State.RETRYABLE)
    queue.make_ready()
    assert settled(queue, stepping, State.SUCCEEDED)["result"] == [{}, "unsupported Unicode escape sequence"]
    assert [row["name"] for row in queue.run(store.steps_of(stepping))] == ["first", "second", "third"]
    endless = ask(queue, "forever")
    eventually(lambda: queue.state_of(endless) is State.RUNNING, what="it runs")
    queue.run(store.cancel([endless]))
    assert settled(queue, endless, State.CANCELLED)["outcome"] == "cancelled"

    start(slots=2)
    assert [job.status() for job in held] == [State.RUNNING] * 3
    children = linux.children_of(node.process.pid)
    assert len(children) == 3
    node.kill()
    assert [finished(job, within_s=8) for job in held] == [State.SUCCEEDED] * 3
    assert [outcomes(queue, job) for job in held] == [[Outcome.LOST, Outcome.SUCCEEDED]] * 3
    assert queue.value("select state from outlive.workers where id = %s", node.id) == "dead"
    all_gone(children)
    doubled = "select job_id from outlive.attempts where state = 'succeeded' group by 1 having count(*) > 1"
    assert queue.values(doubled) == []
