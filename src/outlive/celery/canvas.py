"""Signatures, and what they are made into: chains, groups and chords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

import msgspec

from outlive import foreign_options, validation, wire
from outlive.celery.results import AsyncResult, GroupResult, app
from outlive.client.linking import result_of
from outlive.client.options import BoundJob, JobOptions
from outlive.errors import ConfigError
from outlive.model import new_job_id

if TYPE_CHECKING:
    from outlive.celery.tasks import SharedTask

Step: TypeAlias = "Signature | Workflow"
Before: TypeAlias = BoundJob[Any] | list[BoundJob[Any]] | None
"""What the step before has made: a job, the jobs of a group, or nothing yet."""
_SENT = {
    "countdown": "delay",
    "eta": "run_at",
    "task_id": "id",
    "time_limit": "timeout",
    **{one: one for one in ("expires", "queue", "priority", "on_failed")},
}


@dataclass(frozen=True)
class _OfBody:
    """The `on_failed` of the body of a chord, for its header: the first job to fail calls it, and the others do not."""

    task: Any
    once_for: UUID

    def add_to(self, job: BoundJob[Any]) -> BoundJob[Any]:
        links = cast("dict[str, Any]", wire.decode(job.request.links or b"{}"))
        links["on_failed"]["once_for"] = str(self.once_for)
        return BoundJob(job.app, msgspec.structs.replace(job.request, links=wire.encode(links)))


@dataclass(frozen=True)
class Signature:
    """A call for later. In a chain it gets the result of the step before as its first argument, unless `immutable`."""

    task: SharedTask
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    immutable: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    if not TYPE_CHECKING:
        __getattr__ = validation.hinting("a signature")

    def __or__(self, other: Step) -> Workflow:
        return chain(self, other)

    def set(self, **options: Any) -> Signature:
        """Change the options of this signature itself."""
        self._check(options)
        self.options.update(options)
        return self

    def _check(self, options: Mapping[str, Any]) -> None:
        if refused := options.keys() - _SENT.keys():
            hint = foreign_options.not_sent(self.task.name.rpartition(".")[2], min(refused), JobOptions.__annotations__)
            raise ConfigError(f"apply_async does not take {min(refused)}: {hint}")

    def clone(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Signature:
        """A copy with more arguments, the positional ones before its own. One that is immutable takes none."""
        self._check(options)
        one = replace(self, options={**self.options, **options})
        if self.immutable:
            return one
        return replace(one, args=(*args, *self.args), kwargs={**self.kwargs, **(kwargs or {})})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        whole = self.clone(args, kwargs)
        return whole.task(*whole.args, **whole.kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        found: AsyncResult = chain(self.clone(args, kwargs, **options))()
        return found

    def after(self, before: Before) -> BoundJob[Any]:
        """A job of outlive, which follows the ones before it, if there are any."""
        if before and (counted := self.options.keys() & {"countdown", "expires"}):
            hint = "leave it out, and to wait, begin the task with outlive.current().sleep(…)"
            raise ConfigError(f"{min(counted)} of a step that follows another would count from the call: {hint}")
        using: dict[str, Any] = {_SENT[name]: value for name, value in self.options.items()}
        if "id" in using:
            using["id"] = _id(using["id"])
        first = () if self.immutable or before is None else (result_of(before),)
        using |= {"after": before, "on_failure": "cancel"} if before else {}
        if isinstance(of_body := using.get("on_failed"), _OfBody):
            using["on_failed"] = of_body.task
            return of_body.add_to(self.task.task.using(**using).job(*first, *self.args, **self.kwargs))
        return self.task.task.using(**using).job(*first, *self.args, **self.kwargs)


def _id(task_id: str) -> UUID:
    try:
        return UUID(task_id)
    except ValueError:
        once = "to enqueue a job only once, write task.using(dedupe_key=…) with `task` of the shared task"
        raise ConfigError(f"task_id is {task_id!r}, and an id is a UUID: leave it out; {once}") from None


@dataclass(frozen=True)
class Workflow:
    """What `chain` and `group` return: called, it enqueues its jobs in one transaction."""

    steps: tuple[Step, ...]
    one_by_one: bool

    def __or__(self, other: Step) -> Workflow:
        return chain(self, other)

    if not TYPE_CHECKING:
        __getattr__ = validation.hinting("a canvas")

    def clone(self, args: Sequence[Any] = ()) -> Workflow:
        """A copy whose first step has more arguments; of a group, each step."""
        firsts = 1 if self.one_by_one else len(self.steps)
        return replace(self, steps=(*(one.clone(args) for one in self.steps[:firsts]), *self.steps[firsts:]))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.apply_async(args, **options)

    delay = __call__

    def apply_async(self, args: Sequence[Any] = (), *, on_failed: object = None, **options: Any) -> Any:
        """Enqueue its jobs. `on_failed` is for each of them that has no other."""
        if options:
            raise ConfigError(f"a canvas takes no {min(options)}: {foreign_options.of_canvas(min(options))}")
        jobs, last = _jobs(self.clone(args), None, {"on_failed": on_failed} if on_failed else {})
        if last is None:
            raise ConfigError("a chain has at least one signature: give it one")
        handles = {job.request.id: handle for job, handle in zip(jobs, app.enqueue_many(jobs), strict=True)}
        ends = [AsyncResult(str(handles[job.request.id].id)) for job in (last if isinstance(last, list) else [last])]
        return GroupResult(ends) if isinstance(last, list) else ends[0]


def chain(*steps: Step | Iterable[Step]) -> Workflow:
    """These one after the other. The step after a group gets the list of its results, as the body of a chord does."""
    return Workflow(_flat(steps, one_by_one=True), one_by_one=True)


def group(*steps: Step | Iterable[Step]) -> Workflow:
    """These side by side. Its result is the list of theirs. Those of a group in it are its own."""
    return Workflow(_flat(steps, one_by_one=False), one_by_one=False)


def chord(header: Iterable[Step], body: Step | None = None) -> Any:
    """These side by side, and then the body with their results: `chord(header)(body)`, or `chord(header, body)()`.

    `chord(header)(body, on_failed=…)` is as `set(on_failed=…)` of the body, which is also called, once, if jobs of the
    header fail that name no other task.
    """
    first = group(header)

    def call(body: Step, *, on_failed: object = None, **options: Any) -> Any:
        return chain(first, _told(body, on_failed) if on_failed else body).apply_async(**options)

    return call if body is None else chain(first, body)


def _told(step: Step, on_failed: object) -> Step:
    if isinstance(step, Signature):
        return replace(step, options={"on_failed": on_failed, **step.options})
    return replace(step, steps=tuple(_told(one, on_failed) for one in step.steps))


def _flat(steps: tuple[Step | Iterable[Step], ...], *, one_by_one: bool) -> tuple[Step, ...]:
    """The steps, those of a chain in a chain or of a group in a group as its own."""
    flat: list[Step] = []
    for one in _given(steps):
        flat += one.steps if isinstance(one, Workflow) and one.one_by_one == one_by_one else [one]
    return tuple(flat)


def _given(steps: tuple[Step | Iterable[Step], ...]) -> tuple[Step, ...]:
    """The steps, which Celery takes one by one or as a single iterable."""
    if len(steps) == 1 and not isinstance(steps[0], Signature | Workflow):
        steps = tuple(steps[0])
    return cast("tuple[Step, ...]", steps)


def _jobs(step: Step, before: Before, options: Mapping[str, Any]) -> tuple[list[BoundJob[Any]], Before]:
    """The jobs of a step in an order in which they can be enqueued, and those whose results the next step gets."""
    if isinstance(step, Signature):
        job = replace(step, options={**options, **step.options}).after(before)
        return [job], job
    jobs: list[BoundJob[Any]] = []
    ends: list[BoundJob[Any]] = []
    for one, body in zip_longest(step.steps, step.steps[1:]):
        given = options
        if (
            step.one_by_one
            and isinstance(one, Workflow)
            and isinstance(body, Signature)
            and "on_failed" in body.options
        ):
            given = {**options, "on_failed": _OfBody(body.options["on_failed"], new_job_id())}
        more, last = _jobs(one, before, given)
        jobs += more
        if step.one_by_one:
            before = last
        elif isinstance(last, BoundJob):
            ends.append(last)
        else:
            raise ConfigError("a chain that ends in a group can't stand in a group: put a task after its group")
    return jobs, before if step.one_by_one else ends
