"""The statements that change jobs, each as it is sent to a scene. unchanging.py names those that change none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from outlive import db, store
from outlive.model import Ended, JobRequest, Lane
from outlive.protocol import KeptStep, Wait
from outlive.states import TRANSITIONS, Outcome, State
from outlive_lab.pairs import scenes
from outlive_lab.pairs.scenes import ANNA, BATCH, BERT, LANES, LEASE_S, NAMES, PLAYED, SCHEDULE, SITE, TASK, J, K, new

Tokens = dict[UUID, int]
Acting = Callable[[db.Connection, Tokens], object]
Make = Callable[[Tokens], db.Statement[Any]]


@dataclass(frozen=True, slots=True)
class Action:
    """A statement on some jobs. One that `passes` leaves alone what is locked, and is sent again later."""

    name: str
    statement: str
    act: Acting
    passes: bool = False
    of_client: bool = False
    """It may be sent in a transaction of any level of isolation."""

    @property
    def many(self) -> bool:
        """Whether it concerns several jobs, one after the other: another statement may come between two of them, so
        only the rules tell whether the result is right."""
        return bool({"both", "and"} & set(self.name.split())) or self.statement == "cancel_batch"

    def belongs_to(self, scene: str) -> bool:
        """Whether it is of interest in this scene. Most are in all in which they do something."""
        return scene in _SCENES.get(self.name, _SCENES.get(self.statement, scene)).split()

    def acts_unseen(self, scene: str) -> bool:
        """Whether it does what is done after each run anyway, so that it can't be told from the result."""
        return self.statement in _SWEEPS and scene in ("late", "paused")

    @property
    def events(self) -> frozenset[str]:
        """The events of states.py that it may be."""
        wanted = _ALIASES.get(self.statement, self.statement)
        more = _MORE_EVENTS.get(self.statement, ())
        return frozenset({one.event for one in TRANSITIONS if one.statement == wanted}.union(more))


# fmt: off
_SCENES = {
    **dict.fromkeys(("give_up_silent", "declare_dead", "stop_worker", "heartbeat"), "running suspended"),
    **dict.fromkeys(("ask_source", "count_outcomes", "pause_source", "resume_source", "set_source"), "sourced"),
    **dict.fromkeys(("send", "supply"), "running suspended ended"),
    **dict.fromkeys(("time out J", "exhaust J", "overrun J", "act: cancel both"), "running"),
    **dict.fromkeys(("come back", "protocol: register again", "take back"), "suspected orphaned"),
    "goodbye": "running keyed orphaned", "enqueue_plain": "waiting", "claim from the source": "sourced",
    "pause_queue": "queued keyed suspected waiting", "enqueue with the key": "queued keyed late paused",
    "claim": "waiting queued keyed suspended caught finished ended guilty late paused scheduled opened",
    "enqueue into the batch": "running opened ended caught",
    "enqueue after (block) J": "running ended caught suspended",
}
"""Where statements are of interest that write the same everywhere."""
_SWEEPS = ("admit_due", "check_late_ends", "follow_late_ends", "requeue_missed")
_ALIASES = {
    **dict.fromkeys(("claim", "fail", "goodbye"), "end_and_claim"),
    **dict.fromkeys(("enqueue_one", "enqueue_plain", "run_schedule"), "enqueue"),
    **dict.fromkeys(("succeed", "complete"), "complete_with_records"),
    **dict.fromkeys(("act", "cancel_batch", "cancel_expired", "fire"), "cancel"),
    **dict.fromkeys(("prune_finished", "prune_expired"), "prune_jobs"), "wait_in": "suspend",
}
_MORE_EVENTS = {
    **dict.fromkeys(("register_worker", "register", "take_back"), ("release",)),  # A loss that is taken back.
    **dict.fromkeys(("enqueue", "enqueue_one"), ("cancel",)), **dict.fromkeys(("send", "supply"), ("end_wait",)),
    "claim": ("claim_suspect", "convict"),
}
ENDS: dict[str, dict[str, Any]] = {
    "succeed": {"outcome": Outcome.SUCCEEDED, "result": b"42"},
    "fail": {"outcome": Outcome.FAILED, "after_s": 0.0},
    "fail for good": {"outcome": Outcome.FAILED, "final": True},
    "time out": {"outcome": Outcome.TIMED_OUT, "after_s": 0.0},
    "exhaust": {"outcome": Outcome.OUT_OF_MEMORY, "after_s": 0.0},
    "overrun": {"outcome": Outcome.OUT_OF_MEMORY, "killed": True, "signal": "SIGKILL", "after_s": 0.0},
    "crash": {"outcome": Outcome.CRASHED, "signal": "SIGSEGV", "after_s": 0.0},
    "hand back": {"outcome": Outcome.RELEASED},
    "stop": {"outcome": Outcome.CANCELLED},
}
_RECORDS = b'[{"scope": "s", "key": "k", "data": {}, "strength": 1}]'
_SECRET = "(select outlive.attempt_secret(k.secret, %(token)s) from outlive.workers k where k.id = %(worker)s)"
_PROTOCOL = {
    "succeed": "select from outlive.succeed(%(worker)s, %(token)s, '1')",
    "fail": "select outlive.fail(%(worker)s, %(token)s, retry => false)",
    "keep_step": "select outlive.keep_step(%(worker)s, %(token)s, 'next', '2')",
    "wait_in": "select outcome from outlive.wait_in(%(worker)s, %(token)s, 'pause', '1 minute', 'go')",
    "renew": "select from outlive.renew(%(worker)s, array[%(token)s::bigint])",
    "complete": f"select outlive.complete(%(token)s, {_SECRET})",
    "once": f"select outlive.once(%(token)s, {_SECRET}, 'next')",
}
"""The functions that workers in other languages call, and jobs that end in their own transaction."""


def _sent(make: Make, answer: Callable[[Any], object] = lambda _: None) -> Acting:
    return lambda connection, tokens: answer(db.run(connection, make(tokens)))


def _asked(query: str, job: UUID = J, worker: UUID = ANNA) -> Acting:
    def act(connection: db.Connection, tokens: Tokens) -> object:
        return connection.execute(query.encode(), {"worker": worker, "token": tokens.get(job, 0)}).fetchall()

    return act


def _changes(found: Sequence[Any]) -> object:
    return sorted((one.id, one.state, one.changed) for one in found)


def _turn(worker: UUID, ends: Callable[[Tokens], Sequence[Ended]], *lanes: Lane) -> Acting:
    return _sent(
        lambda tokens: store.end_and_claim(worker, ends(tokens), lanes, limit=2, lease_s=LEASE_S),
        lambda turn: (sorted(one.id for one in turn.claimed), sorted(turn.refused)))


def _enqueued(request: JobRequest) -> Acting:
    return _sent(lambda _: store.enqueue([request], max_args_bytes=1000), sorted)


def _of_job(job: UUID) -> Iterator[Action]:
    """What is done to one job."""
    name, other = NAMES[job], K if job == J else J

    def one(verb: str, statement: str, act: Acting, **more: bool) -> Action:
        return Action(f"{verb} {name}", statement, act, **more)

    def token(tokens: Tokens) -> int:
        return tokens.get(job, 0)

    def passing(verb: str, make: Make) -> Action:
        return one(verb, make({}).name, _sent(make), passes=True)

    def verb(word: str, make: Callable[[list[UUID]], db.Statement[Any]], **more: bool) -> Action:
        return one(word, make([]).name, _sent(lambda _: make([job]), _changes), **more)

    def waiting(word: str, **wait: Any) -> Action:
        return one(word, "suspend", _sent(lambda t: store.suspend(ANNA, Wait(token(t), **wait)), lambda s: s.outcome))

    def written(word: str, statement: str, **end: Any) -> Action:
        return one(word, statement, _sent(lambda t: store.write_end(ANNA, Ended(token(t), **end))))

    for word, end in ENDS.items():
        yield one(word, "end_and_claim", _turn(ANNA, lambda t, end=end: [Ended(token(t), **end)]))  # type: ignore[misc]
    yield one("claim", "end_and_claim", _turn(BERT, lambda _: (), LANES[job]), passes=True)
    spawned, gathered = (b'[{"id": "%s", "task": "work"}]' % str(new(f"of {name}, {how}")).encode() for how in "sg")
    yield written("complete", "complete_with_records", records=_RECORDS, spawns=spawned)
    yield written("restart", "restart", outcome=Outcome.RELEASED, restart=b'{"n": 2}')
    yield passing("renew", lambda t: store.renew(ANNA, [token(t)]))
    yield passing("begin", lambda t: store.mark_begun(ANNA, [token(t)]))
    yield passing("convict", lambda t: store.convict(ANNA, [token(t)]))
    yield passing("end the time alone of", lambda t: store.end_time_alone(ANNA, token(t)))
    yield passing("prune", lambda t: store.prune_jobs([job]))
    yield one("keep a step of", "keep_steps", _sent(
        lambda t: store.keep_steps(ANNA, [token(t)], [KeptStep("next", b"2", None, 0.1)]), sorted))
    yield waiting("suspend", step="pause", signal="go", after_s=60.0)
    yield waiting("let wait for the other", step="gather", needs=[other.bytes])
    yield waiting("let spawn and wait", step="gather", spawns=gathered)
    yield verb("cancel", store.cancel, of_client=True)
    yield verb("retry", store.retry)
    yield verb("repeat", store.repeat)
    yield verb("release", store.release)
    yield verb("block", partial(store.block, reason="for a while"))
    yield one("rerun", "rerun", _sent(lambda _: store.rerun(job, "ask"), str))
    yield one("supply a step of", "supply", _sent(lambda _: store.supply(job, "wait", b"3", "Eve", replacing=False)))
    yield one("send to", "send", _sent(lambda _: store.send(job, "go", b"1"), str))


def _around_job(job: UUID) -> Iterator[Action]:
    """What workers in other languages do to one job, and new jobs that concern it."""
    name, key = NAMES[job], NAMES[job].lower()
    for word, query in _PROTOCOL.items():
        in_any = word in ("succeed", "fail", "complete", "once")
        act = _asked(query, job)
        yield Action(f"protocol: {word} {name}", word, act, passes=word == "renew", of_client=in_any)
    skipping = scenes.job(new(f"that skips {name}"), dedupe_key=key)
    replacing = msgspec.structs.replace(scenes.job(new(f"that replaces {name}"), dedupe_key=key), on_conflict="replace")
    yield Action(f"enqueue with the dedupe key of {name}", "enqueue_one", _enqueued(skipping), of_client=True)
    yield Action(f"replace {name}", "enqueue_one", _enqueued(replacing), of_client=True)
    for on_failure in ("block", "cancel"):
        after = scenes.job(new(f"after {name} ({on_failure})"), after=[job], on_failure=on_failure)
        yield Action(f"enqueue after ({on_failure}) {name}", "enqueue", _enqueued(after), of_client=True)


def _of_all() -> Iterator[Action]:
    """What is done to both, or to no job in particular."""
    def ends(*jobs: UUID) -> Callable[[Tokens], Sequence[Ended]]:
        return lambda tokens: [Ended(tokens.get(job, 0)) for job in jobs]

    def one(name: str, statement: db.Statement[Any], answer: Callable[[Any], object] = lambda _: None) -> Action:
        return Action(name, statement.name, _sent(lambda _: statement, answer))

    yield Action("claim both", "end_and_claim", _turn(BERT, ends(), LANES[J], LANES[K]), passes=True)
    yield Action("succeed both", "end_and_claim", _turn(ANNA, ends(J, K)))
    yield Action("succeed J and claim K", "end_and_claim", _turn(ANNA, ends(J), LANES[K]))
    lanes = [Lane("default", SITE, TASK, priority, asks=True) for priority in (1, 2)]
    yield Action("claim from the source", "end_and_claim", _turn(BERT, ends(), *lanes), passes=True)
    yield one("cancel both", store.cancel([K, J]), _changes)
    yield one("retry both", store.retry([K, J]), _changes)
    yield one("release both", store.release([K, J]), _changes)
    yield one("act: cancel both", store.act("cancel", [J, K], who="Eve", what={}, entry=new("audit")), _changes)
    swept: dict[str, db.Statement[Any]] = {
        "claim a suspect": store.claim_suspect(BERT, tasks=[TASK]),
        "expire": store.expire(), "reap": store.reap(), "declare dead": store.declare_dead({ANNA: 4711}),
        "give up silent": store.give_up_silent(), "quarantine killers": store.quarantine_killers(),
        "admit due": store.admit_due(), "check late ends": store.check_late_ends(),
        "follow late ends": store.follow_late_ends(), "cancel expired": store.cancel_expired(),
        "requeue missed": store.requeue_missed(), "end due waits": store.end_due(),
        "resume": store.resume(ANNA, limit=2, lease_s=LEASE_S), "prune expired": store.prune_expired(),
        "prune failed": store.prune_finished(State.FAILED, keep_s=0.0),
        "prune succeeded": store.prune_finished(State.SUCCEEDED, keep_s=0.0),
    }
    for name, statement in swept.items():
        yield Action(name, statement.name, _sent(lambda _, statement=statement: statement), passes=True)  # type: ignore[misc]


def _of_others() -> Iterator[Action]:
    """What is done to workers, queues, batches, sources and schedules."""
    def one(name: str, statement: db.Statement[Any], answer: Callable[[Any], object] = lambda _: None) -> Action:
        return Action(name, statement.name, _sent(lambda _: statement, answer))

    yield Action("take back", "take_back", _sent(lambda t: store.take_back(ANNA, [t.get(J, 0), t.get(K, 0)])))
    yield Action("come back", "register_worker", lambda c, _: scenes.register(c, scenes.DORA, formerly=ANNA))
    yield one("stop Anna", store.stop_worker(ANNA))
    yield one("drain Anna", store.heartbeat(ANNA, "draining"), bool)
    yield one("unpark", store.unpark(ANNA, [J, K]))
    yield one("pause the queue", store.pause_queue("default"))
    yield one("resume the queue", store.resume_queue("default"), bool)
    yield one("close the batch", store.close_batch(BATCH))
    yield Action("cancel the batch", "cancel_batch", _cancel_batch)
    yield Action("enqueue a plain job", "enqueue_plain", _enqueued(scenes.job(new("plain"))), of_client=True)
    for word, links in {"into the batch": {"batch": BATCH}, "with the key": {"key": "one", "concurrency": 1}}.items():
        yield Action(f"enqueue {word}", "enqueue", _enqueued(scenes.job(new(word), **links)), of_client=True)  # type: ignore[arg-type]
    yield Action("protocol: claim", "claim", _asked(
        "select id from outlive.claim(%(worker)s, 50)", worker=BERT), passes=True)
    yield Action("protocol: say goodbye", "goodbye", _asked("select outlive.goodbye(%(worker)s)"), passes=True)
    yield Action("protocol: register again", "register", _asked(
        "select from outlive.register('Emil', array['work'], formerly => %(worker)s, liveness => false)"))
    for job in (J, K):
        yield Action(f"ask the source for {NAMES[job]}", "ask_source", _sent(
            lambda t, job=job: store.ask_source(SITE, t.get(job, 0)), lambda grant: grant.granted))  # type: ignore[misc]
    for ok in (True, False):
        yield Action(f"count a {'success' if ok else 'failure'} of the source", "count_outcomes", _sent(
            lambda t, ok=ok: store.count_outcomes([(SITE, t.get(J, 0), ok)])))  # type: ignore[misc]
    yield one("pause the source", store.pause_source(SITE))
    yield one("resume the source", store.resume_source(SITE))
    yield one("let the source admit two", store.set_source(SITE, {"max_concurrency": 2}))
    yield Action("fire the schedule", "fire", _fire, passes=True)
    yield one("run the schedule", store.run_schedule(SCHEDULE))
    yield one("pause the schedule", store.pause_schedule(SCHEDULE))
    yield one("remove the schedule", store.remove_schedule(SCHEDULE))
# fmt: on


def _fire(connection: db.Connection, _: Tokens) -> None:
    for seen in db.run(connection, store.due_schedules()).due:
        db.run(connection, store.fire(seen, [PLAYED], PLAYED + timedelta(minutes=1)))


def _cancel_batch(connection: db.Connection, _: Tokens) -> object:
    db.run(connection, store.close_batch(BATCH, cancelling=True))
    return db.run(connection, store.cancel_batch(BATCH))


_OF_K = (
    *("succeed", "fail for good", "crash", "claim", "complete", "suspend", "let wait for the other", "cancel", "retry"),
    *("release", "block", "prune", "repeat", "rerun", "begin", "send to", "replace", "enqueue after (cancel)"),
    *("protocol: fail",),
)
"""What is done to K too: enough to meet what is done to J on everything that the two share."""
ACTIONS = (
    *_of_job(J),
    *_around_job(J),
    *(action for action in (*_of_job(K), *_around_job(K)) if action.name.removesuffix(" K") in _OF_K),
    *_of_all(),
    *_of_others(),
)
