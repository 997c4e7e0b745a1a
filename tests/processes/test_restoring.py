"""A database that is restored from a backup: what docs/how-to/backup.md says of its jobs."""

from psycopg.conninfo import conninfo_to_dict

from outlive.states import Outcome, State
from tests import faults
from tests.driving.databases import new_database
from tests.driving.making import Queue
from tests.waiting import eventually


def test_after_a_restore_finished_jobs_stay_and_all_others_run_again(server_url, start):
    task, args = faults.add.name, b"[20, 22]"
    with new_database(server_url) as url:
        with Queue.at(url) as before:
            before.register_worker()
            finished = before.make_finished(task=task, args=args)
            running = before.make(task, args=args)
            before.claim_job(running)
            waiting = before.make(task, args=args)
            # The restore is an hour later. Minutes would pass before other workers declare this one dead.
            before.execute(
                "update outlive.workers set last_seen = last_seen - interval '1 hour', heartbeat_s = 0.5, stale_s = 1, "
                "dead_s = 2"
            )
        with new_database(server_url, template=str(conninfo_to_dict(url)["dbname"])) as restored:
            worker = start(url=restored, sweep_s="1")
            with Queue.at(restored) as after:
                for job in (running, waiting):
                    eventually(lambda: after.state_of(job) is State.SUCCEEDED, within_s=40, what="it runs again")  # noqa: B023
                ends = "select outcome from outlive.attempts where job_id = %s order by attempt"
                found = [after.values(ends, job) for job in (finished, running, waiting)]
            assert worker.stop() == 0
    assert found == [[Outcome.SUCCEEDED], [Outcome.LOST, Outcome.SUCCEEDED], [Outcome.SUCCEEDED]]
