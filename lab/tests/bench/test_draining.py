"""The bench claims what a worker would claim."""

from outlive import db
from outlive_lab.bench.draining import Drain
from outlive_lab.bench.stock import Stock
from tests.driving.making import Queue


def test_a_drain_ends_every_job_that_a_worker_could_claim(database_url):
    with Queue.at(database_url, db.PINNED) as connection:
        Stock(count=30).put(connection)
        Stock(count=20, priority=2).put(connection)
        Stock(count=30, source="open-", lanes=3).put(connection)
        Stock(count=5, source="paused", paused=True).put(connection)
        Stock(count=5, ahead_s=3600.0).put(connection)
        drain = Drain(connection, k=7)
        turns = []
        while claimed := drain.turn():
            turns.append(claimed)
        drain.finish()

        ended = connection.execute(
            "select j.source, count(*) from outlive.attempts a join outlive.jobs j on j.id = "
            "a.job_id where a.outcome = 'succeeded' group by 1 order by 1"
        ).fetchall()
        left = connection.execute("select source, count(*) from outlive.waiting group by 1 order by 1").fetchall()
    assert max(turns) == 7
    assert ended == [("", 50), ("open-000000", 10), ("open-000001", 10), ("open-000002", 10)]
    assert left == [("", 5), ("paused", 5)]
