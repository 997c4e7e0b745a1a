"""The options of other job systems, and those of outlive that do the same. Errors suggest by this table.

The pages docs/how-to/migrate-from-*.md have the same rows, and a test compares them. Imported only for an error.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Word(NamedTuple):
    """What to write in place of an option of another system."""

    option: str
    place: str
    """Where outlive takes it."""
    note: str = ""
    """How it differs."""


TASK, USING = "@app.task", "task.using"
WORDS: dict[str, dict[str, Word]] = {
    "celery": {
        "max_retries": Word("max_attempts", TASK, "it counts the first try too: max_retries=3 is max_attempts=4"),
        "autoretry_for": Word("retry_on", TASK, "without fail_on, every exception is retried"),
        "dont_autoretry_for": Word("fail_on", TASK, "an exception that is in both lists is retried"),
        "default_retry_delay": Word("backoff", TASK, "a list of one delay does not double: backoff=[180]"),
        "retry_backoff": Word("backoff", TASK),
        "time_limit": Word("timeout", TASK),
        "soft_time_limit": Word(
            "timeout",
            TASK,
            "what the task returns then is lost; @outlive.step(timeout=…) raises TimeoutError, which it may catch",
        ),
        "rate_limit": Word("source", TASK, "a source has a rate_limit_per_minute for all workers together"),
        "acks_late": Word("on_worker_death", TASK, '"retry", the default, is like acks_late; "fail" is not'),
        "retry_on_worker_lost": Word("max_crashes", TASK, "a job whose process dies is always retried"),
        "reject_on_worker_lost": Word("max_crashes", TASK, "a job whose process dies is always retried"),
        "queue": Word("queue", USING),
        "countdown": Word("delay", USING),
        "eta": Word("run_at", USING, "it needs a time zone"),
        "task_id": Word("id", USING, "it is a uuid.UUID"),
        "expires": Word("expires", USING),
        "retry_backoff_max": Word("backoff", TASK, "the last of a list of pauses repeats: backoff=[60, 120, 600]"),
        "retry_kwargs": Word("max_attempts", TASK, "its countdown is a list of one: backoff=[5]"),
        "link_error": Word("on_failed", USING, "a task that takes the id of the failed job, and its error"),
        "link": Word("after", USING, "the job that follows names the one before it"),
    },
    "rq": {
        "retry": Word("max_attempts", TASK, "Retry(max=3) is max_attempts=4; its interval is backoff"),
        "job_timeout": Word("timeout", TASK),
        "result_ttl": Word("keep_finished", TASK),
        "at_front": Word("priority", USING, "0 is the most urgent, 5 the default"),
        "depends_on": Word("after", USING),
        "job_id": Word("id", USING, "it is a uuid.UUID"),
        "unique": Word("dedupe_key", USING, "the key is yours to choose"),
    },
    "procrastinate": {
        "retry": Word("max_attempts", TASK, "it counts the first try too; the waits are backoff"),
        "schedule_in": Word("delay", USING),
        "schedule_at": Word("run_at", USING, "it needs a time zone"),
        "queueing_lock": Word("dedupe_key", USING, "it also holds while the job runs"),
        "lock": Word("concurrency_key", USING, "jobs with the same key start by priority and time"),
    },
}
"""By system. A word that two systems have means the same option in both."""


LEFT_OUT = {
    "bind": "leave it out: outlive.current() is the job, inside of it; @shared_task of outlive.celery takes it",
    "ignore_result": "leave it out: a job without a return value stores nothing; keep_finished=… limits the rest",
    "retry_jitter": "leave it out: each delay is shortened at random by up to half",
    "track_started": "leave it out: a job that runs is always shown as running",
    "serializer": "leave it out: arguments and results are JSON, as annotated",
    "typing": "leave it out: enqueue always compares the arguments with the signature of the function",
    "pydantic": "leave it out: a parameter that is annotated with a model gets one",
    "throws": "leave it out, and raise outlive.Cancel for what is no error: it is not logged as one",
    "store_errors_even_if_ignored": "leave it out: every attempt keeps its error",
    "trail send_events": "leave it out: the dashboard and `outlive show ID` always have it",
    "routing_key exchange compression producer retry_policy": "leave it out: it is for a broker",
    "headers": "give the job what they say as an argument; a trace of OpenTelemetry or Sentry goes with it in any case",
    "on_failure after_return": "use @app.on_failed, or a decorator below @app.task",
    "base": "use @app.on_failed and @app.on_process_start in place of a class, and a decorator below @app.task",
}
"""What Celery has an option for, and outlive needs none."""
SETTINGS = {
    "broker broker_url": "leave it out: jobs are in Postgres, at database_url or OUTLIVE_DATABASE_URL",
    "backend result_backend": "leave it out: results are in Postgres, with the jobs",
    "include imports": "import these modules where the app is: a worker takes MODULE:APP",
    "timezone": "give it to each schedule: @app.schedule(…, timezone=…)",
    "task_queues": "leave it out: a queue is there when a task or a job names it",
    "task_soft_time_limit": "use @outlive.step(timeout=…), or @shared_task(soft_time_limit=…) of outlive.celery",
    "task_routes": 'did you mean queue_of? It maps patterns of names to queues: {"shop.mail.*": "mail"}',
    "task_default_queue": 'use queue_of={"*": "mail"}',
    "task_always_eager": "in tests, use `with outlive_jobs.eager():`",
    "task_time_limit": "did you mean timeout_s?",
    "task_acks_late": 'leave it out: a job whose worker dies runs again, unless its task has on_worker_death="fail"',
    "result_expires": "did you mean keep_finished_s?",
    "beat_schedule": "use @app.schedule(…) on each task",
    "worker_concurrency": "did you mean slots? For thousands of jobs that wait: @app.task(share=500) on an async def",
    "worker_pool": "leave it out: each job has a process; for gevent or eventlet @app.task(share=500) on an async def",
    "worker_prefetch_multiplier": "leave it out: a worker claims what its slots can begin",
    "worker_max_tasks_per_child": "use @app.task(recycle_after=…)",
}
"""The settings of Celery, and what to write."""
ATTRIBUTES = {
    "a task": {
        "delay": "write task.enqueue(…)",
        "apply_async": "write task.enqueue(…), with options task.using(delay=…).enqueue(…)",
        "apply": "write task(…), which calls its function here and now",
        "s": "write task.job(…): outlive.chain and outlive.group take it, and outlive.result_of the result of another",
        "si": "write task.job(…): outlive.chain and outlive.group take it",
        "signature": "write task.job(…): outlive.chain and outlive.group take it",
        "retry": "raise outlive.Retry(after=…) in the task",
        "send": "write task.enqueue(…)",
        "defer": "write task.enqueue(…)",
    },
    "a job": {
        "get wait join": "write job.result(timeout=…)",
        "task_id": "write job.id",
        "traceback": "write `outlive show ID`, or catch outlive.JobFailed of job.result(): its attempt has the stack",
        "state": "write job.status()",
        "ready": "write job.status(), or job.result(timeout=…) to wait",
        "successful": "write job.status() == outlive.State.SUCCEEDED",
        "failed": "write job.status() == outlive.State.FAILED",
        "revoke": "write job.cancel(), which also stops a job that runs",
    },
    "an app": {
        "AsyncResult": "write app.get_job(id)",
        "add_periodic_task": "write @app.schedule(…) on the task",
        "autodiscover_tasks": "import the modules with tasks where the app is: a worker takes MODULE:APP",
        "conf config_from_object": "give settings to App(…), or write them into outlive.toml",
        "control": "write app.get_job(id).cancel(), app.queue(name).pause() or app.worker(name).reload(); in place of "
        "inspect, `outlive workers` and `outlive jobs --state running`",
        "on_after_configure on_after_finalize": "write @app.schedule(…) on the task",
        "purge": "write `outlive cancel --all --state pending`",
        "signature": "write task.job(…), or task.s(…) of a shared task",
        "worker_main start": "write `outlive worker MODULE:APP`",
        "send_task": "declare the task, with its name and its parameters, on an App() that no worker runs",
    },
}
"""What other systems have where outlive has none."""
_EAGER = "in tests, use `with outlive_jobs.eager(raising=False):`"
_CALL = f"write task(…), which calls its function here and now; {_EAGER}"
_GROUP = "write group(task.s(one) for one in …)"
_GET = "write result.get(timeout=…)"
_ON_FAILED = "write task.s(…).set(on_failed=other), where other is a task that takes the id of the job and its error"
_ALL_ON_FAILED = (
    "write canvas.apply_async(on_failed=other), where other is a task that takes the id of the job and its error"
)
SHIM = {
    "a shared task": {
        "apply": _CALL,
        "signature": "write task.s(…), with options task.s(…).set(countdown=…)",
        "subtask": "write task.s(…)",
        "map starmap chunks": _GROUP,
        "retry request update_state": "write @shared_task(bind=True), and use self in the task",
        "AsyncResult": "write AsyncResult(id)",
    },
    "self or self.request of a task": {
        "update_state": "write outlive.current().progress(current, total, message)",
        "name task": "write the name, or that of the function",
        "called_directly": "write not self.request.id",
        "delay apply_async s": "write the name of the task in place of self",
    },
    "a result": {
        "result info wait": f"{_GET}, or ask result.job, the handle of outlive",
        "task_id": "write result.id",
        "traceback": "write `outlive show ID`, or catch outlive.JobFailed of get(): its attempt has the stack",
        "forget": "leave it out: @shared_task(keep_finished=…) says how long results are kept",
        "children parent": "write `outlive show ID`, which names the jobs before and after it",
    },
    "the result of a group": {
        "successful": "write all(one.successful() for one in result)",
        "failed": "write any(one.failed() for one in result)",
        "completed_count": "write sum(one.successful() for one in result)",
        "revoke": "write for one in result: one.revoke(terminate=True)",
        "join_native": _GET,
    },
    "a signature": {
        "link": "write one | other, or chain(one, other)",
        "link_error on_error": _ON_FAILED,
        "apply": _CALL,
    },
    "a canvas": {
        "set": "write set(…) on each of its signatures",
        "link": "write one | other, or chain(one, other)",
        "link_error on_error": _ALL_ON_FAILED,
        "apply": f"write canvas.apply_async(); {_EAGER}",
    },
}
"""What objects of outlive.celery lack, although Celery's have it."""
CELERY_NAMES = {
    "Celery": "all tasks are on one app: write `from outlive.celery import app`",
    "Task": "a task has no class: write @app.on_failed and @app.on_process_start, or a decorator below @shared_task",
    "current_app": "write `from outlive.celery import app`",
    "current_task": "write outlive.current(), or bind=True",
    "crontab": 'write @app.schedule("30 7 * * MON-FRI") above @shared_task',
    "get_task_logger": "write logging.getLogger(__name__), which needs no setup",
    "signature subtask maybe_signature": "write task.s(…)",
    "chunks xmap xstarmap": _GROUP,
    "MaxRetriesExceededError": "write self.request.retries >= self.max_retries: a job that has no retry left "
    "fails with the error of its last try",
    "Retry": "catch outlive.Retry, which self.retry raises, or raise it",
    "TaskRevokedError": "catch outlive.JobFailed, whose state is cancelled",
    "states": 'compare texts: result.state == "SUCCESS"',
    "schedule": 'write @app.schedule(every="5m") above @shared_task',
    "Ignore": "raise outlive.Cancel",
    "Reject": "raise outlive.Fail",
    "task_failure": "write @app.on_failed above @shared_task: that task takes the id of the failed job, and its error",
    "worker_process_init": "write @app.on_process_start",
    "setup_logging after_setup_logger after_setup_task_logger": "leave it out, or configure logging where the app is, "
    "without a handler for stderr: docs/how-to/logs.md",
    "before_task_publish after_task_publish": "write a function of your own, and call it in place of delay",
    "worker_init worker_ready worker_shutdown beat_init": "let the unit or the container of the "
    "worker run a command before or after it",
    "task_prerun task_postrun task_success task_retry": "write a decorator of your own, and put it between "
    "@shared_task and the function",
}
"""What code imports from Celery, and outlive.celery does not have."""
NOT_SHARED = {
    "retry_on_worker_lost": "write max_crashes=…, which counts the first one too: with 2, a job runs again after one",
    "dont_autoretry_for": "catch these exceptions in the task, and raise outlive.Fail",
}
"""Options of outlive or Celery that would not do in a shared task what they did before."""
_NOT_SENT = {
    "link": "write one | other, or chain(one, other)",
    "link_error": "write on_failed=other, where other is a task that takes the id of the job and its error",
    "shadow": "leave it out: a job has the name of its task",
    "retry": "leave it out: it is for a broker",
    "soft_time_limit": "give it to shared_task",
}
_IN_CELERY = ("delay", "apply_async", "s", "si", "AsyncResult")
for _table in (LEFT_OUT, SETTINGS, CELERY_NAMES, *ATTRIBUTES.values(), *SHIM.values()):
    for _names in [key for key in _table if " " in key]:  # Several names for which the same is to be written.
        _table |= dict.fromkeys(_names.split(), _table.pop(_names))


def missing(what: str, owner: object, name: str) -> AttributeError:
    """The error for an attribute that `what` does not have, with what to write if another system has it."""
    hint = (ATTRIBUTES | SHIM)[what].get(name)
    celery = " (outlive.celery has it, for code that moves from Celery)" if name in _IN_CELERY else ""
    return AttributeError(f"{what} has no {name}" + (f": {hint}{celery}" if hint else ""), name=name, obj=owner)


def not_sent(task: str, name: str, names: Collection[str]) -> str:
    """What to write in place of an option of `apply_async`, where `task.using` takes the options `names`."""
    option, note = (WORDS["celery"][name].option, WORDS["celery"][name].note) if name in WORDS["celery"] else (name, "")
    if hint := _NOT_SENT.get(name) or LEFT_OUT.get(name):
        return hint
    if option in names:
        return f"write {task}.task.using({option}=…).enqueue(…)" + (f" ({note})" if note else "")
    return f"give it to the task, or write {task}.task.using(…).enqueue(…)"


def of_canvas(name: str) -> str:
    """What to write in place of an option of a canvas."""
    return _ALL_ON_FAILED if name == "link_error" else f"write .set({name}=…) on its signatures"


def suggestion(name: str, names: Collection[str]) -> str | None:
    """What to write in place of `name` where the options `names` are taken; None if the table does not have it.

    An option of outlive may be in the wrong place: `fetch.enqueue(url, delay=5)`.
    """
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    every = {word: found for words in WORDS.values() for word, found in words.items()}
    ours = {found.option: found for found in every.values()}
    found = every.get(name) or ours.get(name)
    if found is None:
        return None
    what = f"did you mean {found.option}?" if found.option in names else f"use {found.place}({found.option}=…)"
    return f"{what} ({found.note})" if found.note and name != found.option else what
