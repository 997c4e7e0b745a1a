"""What is fast or slow by the version of PostgreSQL."""

from outlive import db, embedded, migrate, store
from outlive.model import Ended
from outlive.states import Outcome
from tests.driving.making import WORKER, Queue, lane
from tests.driving.workers import cpu_s
from tests.embedded.actors import DEBIAN_15, needs_debian_15


@needs_debian_15
def test_postgres_15_writes_a_thousand_releases_in_a_second_of_processor_time(directory):
    """Before version 18 Postgres plans a function in SQL again for every call."""
    with Queue.at(embedded.ensure(directory, binaries=DEBIAN_15), db.CLAIMS) as connection:
        migrate.migrate(connection)
        connection.register_worker()
        connection.make_many(1000)
        claimed = connection.claim([lane(quota=1000)], limit=1000)
        before_s = cpu_s(connection.info.backend_pid)
        connection.run(store.end_and_claim(WORKER, [Ended(job.token, Outcome.RELEASED) for job in claimed]))
        assert cpu_s(connection.info.backend_pid) - before_s < 1
        assert connection.value("select count(*) from outlive.waiting") == 1000
