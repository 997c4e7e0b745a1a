"""Celery, on Redis. It is executed by path."""

import os

import celery
import shared

app = celery.Celery("bench", broker=shared.REDIS)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=bool(os.environ.get("PEER_ACKS_LATE")),
    worker_prefetch_multiplier=int(os.environ.get("PEER_PREFETCH", "4")),
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(url, number):
    shared.begin(number)


class Queue(shared.RedisQueue):
    def install(self):
        super().install()
        self._producer = app.amqp.Producer(app.pool.acquire(), auto_declare=False)

    def one(self, number):
        noop.delay(shared.URL, number)

    def bulk(self, numbers):
        """Celery has no call that sends many jobs; one producer for all of them saves a little."""
        for number in numbers:
            noop.apply_async((shared.URL, number), producer=self._producer)

    def left(self):
        return self.redis.llen("celery") + self.redis.hlen("unacked")
