"""What operators do to queues, sources, schedules and batches is in the audit, in the transaction that does it."""

from uuid import UUID

import pytest

from outlive import store
from outlive.model import Schedule
from tests.driving.making import Queue

BATCH = UUID("01a1dd38-0000-7000-8000-000000000007")
SET = ("schedules", "set", "report", "--every", "5m")
DONE: list[tuple[tuple[str, ...], dict[str, object]]] = [
    (("queues", "pause", "slow"), {"queue": "slow"}),
    (("queues", "resume", "paused"), {"queue": "paused"}),
    (("sources", "pause", "shop"), {"source": "shop"}),
    (("sources", "resume", "shop"), {"source": "shop"}),
    (("schedules", "pause", "report"), {"schedule": "report"}),
    (("schedules", "resume", "report"), {"schedule": "report"}),
    (("schedules", "run", "report"), {"schedule": "report"}),
    (SET, {"schedule": "report", "every_s": 300.0, "cron": None}),
    (("schedules", "reset", "report"), {"schedule": "report"}),
    (("schedules", "remove", "report"), {"schedule": "report"}),
    (("batches", "close", str(BATCH)), {"batch": str(BATCH)}),
    (("batches", "cancel", str(BATCH)), {"batch": str(BATCH)}),
]


@pytest.fixture
def things(queue: Queue) -> None:
    """A queue that is paused, a source, a schedule and a batch."""
    queue.make(source="shop")
    queue.run(store.pause_queue("paused"))
    declared = Schedule(name="report", task="work", args=b"{}", cron="0 9 * * *", timezone="UTC")
    queue.run(store.declare_schedules([declared], "shop:app"))
    queue.run(store.set_schedule("report", {"jitter_s": 5.0}))
    queue.run(store.open_batch(BATCH, "import"))


@pytest.mark.usefixtures("things")
@pytest.mark.parametrize(("words", "what"), DONE, ids=[" ".join(words[:2]) for words, _ in DONE])
def test_an_action_is_in_the_audit(cli, queue, words, what):
    assert cli(*words).code == 0
    (row,) = queue.run(store.list_audit())
    assert row["action"] == f"{words[1]} {words[0].removesuffix('es' if words[0] == 'batches' else 's')}"
    assert queue.value("select what from outlive.audit") == what


@pytest.mark.usefixtures("things")
def test_what_can_not_be_written_to_the_audit_is_not_done(cli, queue):
    queue.execute("alter table outlive.audit add check (action <> 'pause queue')")
    assert cli("queues", "pause", "slow").code != 0
    assert queue.values("select name from outlive.queues where paused_at is not null") == ["paused"]
