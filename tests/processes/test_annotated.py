"""Arguments and results as annotated, through a real worker: each kind goes in and comes out, and wrong ones fail."""

import json
from decimal import Decimal
from uuid import UUID

import pytest

import outlive
from outlive.states import Outcome, State
from tests.driving.commands import Cli
from tests.driving.jobs import attempts, finished
from tests.driving.making import Queue
from tests.processes import annotated
from tests.processes.annotated import CASES, HANDING_BACK, MOMENT, ORDER, PERSON, Cat, Dog, Line, No, Ok, app
from tests.waiting import eventually

TARGET = "tests.processes.annotated:app"


def test_every_kind_goes_in_and_comes_out_as_annotated(start):
    start(target=TARGET)
    jobs = {name: HANDING_BACK[name].enqueue(value, repr(value)) for name, (_, value) in CASES.items()}
    for name, job in jobs.items():
        result = job.result(timeout=30)
        assert repr(result) == repr(CASES[name][1]), name
        assert repr(app.get_job(job.id).result()) == repr(result)


def test_arguments_come_as_annotated_however_the_job_is_made_and_run(start, queue, database_url):
    start(target=TARGET)
    cold = annotated.hand_back_cold.enqueue(ORDER, [PERSON])
    lines = [Line(Decimal("0.10")), Line(Decimal("0.20"))]
    total = annotated.total.enqueue(*lines, at=MOMENT, a=Decimal(2), b=Decimal(1))
    completed = annotated.complete.enqueue(database_url)
    spawning = annotated.spawn.enqueue([Decimal("0.5"), Decimal("1.5")])
    assert cold.result(timeout=30) == (ORDER, [PERSON])
    assert repr(total.result(timeout=30)) == "Decimal('0.90')"
    assert repr(completed.result(timeout=30)) == "Decimal('2.50')"
    spawning.result(timeout=30)
    query = "select a.result::text from outlive.attempts a join outlive.jobs j on j.id = a.job_id where j.task = %s"
    eventually(
        lambda: sorted(queue.execute(query, [annotated.total.name])) == [('"0.90"',), ('"1.0"',), ('"3.0"',)],
        within_s=20,
        what="the spawned jobs",
    )


REFUSED: list[tuple[object, str]] = [
    ({"n": "three"}, "argument n: expected int, got str"),
    ({"n": 1.0}, "argument n: expected int, got float"),
    ({"n": None}, "argument n: expected int, got null"),
    (["three"], "argument n: expected int, got str"),
    ({"n": 1, "when": "tomorrow"}, "argument when: invalid RFC3339 encoded datetime"),
    ({"n": 1, "lines": [{"price": "1"}, {"price": []}]}, "argument lines[1].price: expected decimal, got array"),
    ({}, "{task} can't be called with these arguments: missing a required argument: 'n'"),
    ({"n": 1, "m": 2}, "{task} can't be called with these arguments: got an unexpected keyword argument 'm'"),
    ([1, None, None, 4], "{task} can't be called with these arguments: too many positional arguments"),
]


def test_wrong_arguments_from_sql_fail_the_job_for_good_and_are_named(start, queue):
    start(target=TARGET)
    packed = [json.dumps(args).encode() for args, _ in REFUSED]
    jobs = [app.get_job(queue.make(annotated.pay.name, args=args, notify=True)) for args in packed]
    for job, (_, error) in zip(jobs, REFUSED, strict=True):
        assert finished(job) is State.FAILED
        (only,) = attempts(queue, job)
        assert (only.outcome, only.stack) == (Outcome.FAILED, None)
        assert only.error == "BadArguments: " + error.format(task=annotated.pay.name)
    # In a new interpreter, and by their own class.
    asked = ((annotated.pay_cold, b'{"n": "three"}'), (annotated.pick, b'{"one": {"n": -1}}'))
    wrong, picky = (queue.make(task.name, args=args, notify=True) for task, args in asked)
    right = queue.make(annotated.pay_cold.name, args=b'{"n": 3}', notify=True)
    fail_once_by_name(queue, wrong, "argument n: expected int, got str")
    fail_once_by_name(queue, picky, "argument one: Rejected: it is negative")
    assert finished(app.get_job(right)) is State.SUCCEEDED


def fail_once_by_name(queue: Queue, job: UUID, error: str) -> None:
    assert finished(app.get_job(job)) is State.FAILED
    assert [one.error for one in attempts(queue, app.get_job(job))] == [f"BadArguments: {error}"]


def test_a_result_that_is_not_as_annotated_is_kept_if_json_holds_it(start, queue):
    start(target=TARGET)
    for kind, result in (("list", [1, None]), ("number", Decimal(7)), ("text", Decimal("1.5"))):
        assert repr(annotated.give_wrongly.enqueue(kind).result(timeout=30)) == repr(result)
    job = annotated.give_wrongly.enqueue("tuple")
    assert finished(job) is State.FAILED
    assert [one.error for one in attempts(queue, job)] == ["NotJson: the result: expected Decimal, got tuple"]


def test_types_and_constraints_of_pydantic_are_used_for_arguments_results_steps_and_signals(start, queue):
    start(target=TARGET)
    paid, refused = annotated.answer.enqueue(7, Dog()), annotated.answer.enqueue(7, Cat())
    received, stepping = annotated.receive_a_pet.enqueue(), annotated.take_steps.enqueue()
    received.send("pet", Dog())
    with pytest.raises(outlive.BadArguments, match="argument order: Input should be greater than 0"):
        annotated.answer.enqueue(-5, Dog())
    assert (paid.result(timeout=30), refused.result(timeout=30)) == (Ok(id=7), No(reason="no cats"))
    assert received.result(timeout=30) == repr(Dog())
    assert stepping.result(timeout=30) == [repr(No(reason="no money")), "{'id': 1}", "{'reason': 'full'}"]
    below = queue.make(annotated.answer.name, args=b'{"order": -5, "pet": {"kind": "dog"}}', notify=True)
    fail_once_by_name(queue, below, "argument order: Input should be greater than 0")


def test_a_returned_model_that_is_not_as_annotated_is_kept_and_what_is_not_used_is_said_at_the_start(start, queue):
    worker = start(target=TARGET).started()
    why = "its annotation is not used: No and Denied look the same in JSON: it comes out as plain JSON"
    worker.says(f"{annotated.give_twins.name} returns No | Denied, and {why}")
    worker.says(f"the step charge_twins returns No | Denied, and {why}")
    assert worker.log().count("its annotation is not used") == 2
    kid, model, twin = (one.enqueue() for one in (annotated.give_a_kid, annotated.give_a_model, annotated.give_twins))
    results = [job.result(timeout=30) for job in (kid, model, twin)]
    assert results == [Ok(id=1), {"id": 1}, {"reason": "full"}]
    query = "select result::text from outlive.attempts where job_id = %s"
    assert queue.value(query, kid.id) == '{"id":1,"toys":["ball"]}'


LAST_JOB = "select nullif(last_job, %s) from outlive.schedules where name = 'bill'"
FIRE_EACH_SECOND = "update outlive.schedules set every_s = 1, starts_at = null where name = 'bill'"


@pytest.mark.long
def test_the_arguments_of_a_schedule_come_out_as_annotated_or_fail_each_job_for_good(start, queue, database_url):
    start(target=TARGET)
    cli = Cli(database_url)
    assert cli("schedules", "set", "bill", "--args", '{"order": {"id": 7}, "at": "soon", "rate": "1"}').code == 0
    job = UUID(cli("schedules", "run", "bill").out.strip())
    fail_once_by_name(queue, job, "argument order.id: expected uuid, got int")
    assert cli("schedules", "reset", "bill").code == 0
    queue.execute(FIRE_EACH_SECOND)
    right = app.get_job(eventually(lambda: queue.value(LAST_JOB, job), within_s=15, what="a firing"))
    assert repr(right.result(timeout=30)) == repr((ORDER, MOMENT, Decimal("1.50")))
