"""RQ, on Redis. It is executed by path."""

import rq
from rq.registry import StartedJobRegistry

import driving


def noop(url, number):
    driving.begin(number)


class Queue(driving.RedisQueue):
    def install(self):
        super().install()
        self._queue = rq.Queue(connection=self.redis)
        self._started = StartedJobRegistry(queue=self._queue)

    def one(self, number):
        self._queue.enqueue("with_rq.noop", driving.URL, number)

    def bulk(self, numbers):
        jobs = [rq.Queue.prepare_data("with_rq.noop", (driving.URL, number)) for number in numbers]
        self._queue.enqueue_many(jobs)

    def left(self):
        return self._queue.count or self._started.get_job_count(cleanup=False)
