"""RQ, on Redis. It is executed by path."""

import rq
import shared
from rq.registry import StartedJobRegistry


def noop(url, number):
    shared.begin(number)


class Queue(shared.RedisQueue):
    def install(self):
        super().install()
        self._queue = rq.Queue(connection=self.redis)
        self._started = StartedJobRegistry(queue=self._queue)

    def one(self, number):
        self._queue.enqueue("with_rq.noop", shared.URL, number)

    def bulk(self, numbers):
        jobs = [rq.Queue.prepare_data("with_rq.noop", (shared.URL, number)) for number in numbers]
        self._queue.enqueue_many(jobs)

    def left(self):
        return self._queue.count or self._started.get_job_count(cleanup=False)
