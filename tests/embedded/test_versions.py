"""What is fast or slow by the version of PostgreSQL."""

from pathlib import Path

from outlive import db, embedded, migrate, store
from outlive.model import Ended
from outlive.states import Outcome
from tests.driving.making import WORKER, claim, lane, make_many, register_worker, value
from tests.driving.workers import cpu_s
from tests.embedded.actors import DEBIAN_15, needs_debian_15


@needs_debian_15
def test_postgres_15_writes_a_thousand_releases_in_a_second_of_processor_time(directory: Path) -> None:
    """Before version 18 Postgres plans a function in SQL again for every call."""
    with db.connect(embedded.ensure(directory, binaries=DEBIAN_15), db.CLAIMS) as connection:
        migrate.migrate(connection)
        register_worker(connection)
        make_many(connection, 1000)
        claimed = claim(connection, [lane(quota=1000)], limit=1000)
        before_s = cpu_s(connection.info.backend_pid)
        db.run(connection, store.end_and_claim(WORKER, [Ended(job.token, Outcome.RELEASED) for job in claimed]))
        assert cpu_s(connection.info.backend_pid) - before_s < 1
        assert value(connection, "select count(*) from outlive.waiting") == 1000
