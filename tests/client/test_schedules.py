"""Declaring schedules: what is declared, and what is refused where it is written."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

import outlive
from outlive.client.task import Task
from outlive.model import Schedule
from outlive.policy import Policy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def report(kind: str = "short", *, pages: int = 1) -> str:
    return kind * pages


def fetch(url: str) -> str:
    return url


@dataclass
class Line:
    price: Decimal


def bill(line: Line, due: date | None = None) -> None: ...


@pytest.fixture
def app() -> outlive.App:
    return outlive.App()


def declared(app: outlive.App) -> Schedule:
    (schedule,) = app.declared_schedules.values()
    return schedule


def test_a_task_is_scheduled_and_stays_the_task_that_it_is(app):
    task = app.task(report)
    assert app.schedule("*/5 * * * *", timezone="Europe/Berlin")(task) is task
    name = "tests.client.test_schedules.report"
    expected = Schedule(name=name, task=name, args=b"{}", cron="*/5 * * * *", timezone="Europe/Berlin")
    assert app.declared_schedules == {name: expected}


def test_a_plain_function_becomes_a_task(app):
    task = app.schedule(every="30s")(report)
    assert isinstance(task, Task)
    assert task("a", pages=2) == "aa"
    assert app.tasks == {task.name: task}
    assert (declared(app).every_s, declared(app).cron) == (30.0, None)


def test_every_option_is_declared(app):
    app.schedule(
        every="1h",
        timezone="Asia/Tokyo",
        name="hourly",
        args={"kind": "long"},
        missed="all",
        overlap="cancel",
        jitter="5m",
        start=NOON,
        end=NOON.replace(year=2027),
        queue="slow",
        priority=1,
    )(report)
    assert declared(app) == Schedule(
        name="hourly",
        task="tests.client.test_schedules.report",
        args=b'{"kind":"long"}',
        every_s=3600.0,
        timezone="Asia/Tokyo",
        missed="all",
        overlap="cancel",
        jitter_s=300.0,
        starts_at=NOON,
        ends_at=NOON.replace(year=2027),
        queue="slow",
        priority=1,
    )


def test_arguments_are_declared_as_the_task_is_annotated(app):
    app.schedule(every=60, args={"line": Line(Decimal("1.50")), "due": date(2030, 1, 31)})(bill)
    assert declared(app).args == b'{"due":"2030-01-31","line":{"price":"1.50"}}'


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ({"line": Line(Decimal(1)), "due": "soon"}, "argument due: expected date, got str"),
        ([Line(Decimal(1)), NOON], "argument due: expected date, got datetime"),
        ([{"price": "1"}], "argument line: expected Line, got dict"),
        ([Line(1.5)], "argument line.price: expected Decimal, got float"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_with_the_names_of_schedule_and_argument(app, args, fault):
    said = f"^the schedule noon is refused: tests.client.test_schedules.bill can't be enqueued: {fault}$"
    with pytest.raises(outlive.BadArguments, match=said):
        app.schedule(every=60, name="noon", args=args)(bill)
    assert app.declared_schedules == {}


def test_a_task_may_have_several_schedules_under_names_of_their_own(app):
    @app.schedule("0 0 * * *")
    @app.schedule("0 12 * * *", name="noon")
    @app.task(name="twice")
    def twice() -> None: ...

    assert app.declared_schedules.keys() == {twice.name, "noon"}
    with pytest.raises(outlive.ConfigError, match="two schedules are named noon: give one of them another name"):
        app.schedule("1 12 * * *", name="noon")(twice)


@pytest.mark.parametrize(
    ("cron", "options", "reason"),
    [
        (None, {}, "either a cron expression or every=…: give exactly one"),
        ("* * * * *", {"every": "5s"}, "give exactly one"),
        ("every 5 minutes", {}, r"the schedule is 'every 5 minutes': it must be a cron expression"),
        ("61 * * * *", {}, "and its minute from 0 to 59"),
        ("0 0-24 * * *", {}, "and its hour from 0 to 23"),
        ("*/10 5 0 * *", {}, "and its day of month from 1 to 31"),
        ("0 5 * JAN,13 *", {}, "and its month from 1 to 12"),
        ("* * * *", {}, "minute, hour, day of month, month and day of week"),
        ("@daily", {}, "it must be a cron expression"),
        (5, {}, "the schedule is 5: it must be a cron expression"),
        (None, {"every": "0.5s"}, "every is '0.5s': it must be a duration of at least one second"),
        (None, {"every": "soon"}, "every is 'soon': it must be a duration"),
        (None, {"every": 60, "missed": "some"}, "missed is 'some': it must be skip, once or all"),
        (None, {"every": 60, "overlap": "allow"}, "overlap is 'allow': it must be skip, queue or cancel"),
        (None, {"every": 60, "jitter": "2d"}, "jitter is '2d': it must be a duration of at most a day"),
        (None, {"every": 60, "start": datetime(2026, 1, 1)}, "start is .*: it must be a datetime with a time zone"),
        (None, {"every": 60, "end": NOON.replace(year=1999)}, "end is .*: it must be between the years 2000 and 9000"),
        (None, {"every": 60, "start": NOON, "end": NOON.replace(year=2025)}, "the schedule would never fire"),
        (None, {"every": 60, "priority": 10}, "priority is 10: it must be a whole number from 0 to 9"),
        (None, {"every": 60, "name": ""}, "name is ''"),
        (None, {"every": 60, "timezone": 1}, "timezone is 1: it must be"),
        (None, {"evry": 60}, "unknown option evry; did you mean every?"),
        (None, {"every": 60, "args": "short"}, "args is 'short': it must be a mapping"),
        (None, {"every": 60, "args": {"kind": "x" * 65536}}, "over the limit of 65,536"),
    ],
)
def test_nonsense_is_refused_where_it_is_declared(app, cron, options, reason):
    with pytest.raises(outlive.ConfigError, match=reason):
        app.schedule(cron, **options)(report)
    assert app.declared_schedules == {}


@pytest.mark.parametrize("args", [None, {"link": "x"}, ["a", "b"], {"url": {1, 2}}])
def test_arguments_that_do_not_fit_the_task_are_refused(app, args):
    with pytest.raises(outlive.BadArguments, match="fetch can't be"):
        app.schedule(every=60, args=args)(fetch)


def test_a_task_of_another_app_or_with_options_for_its_jobs_is_refused(app):
    task = app.task(report)
    for other in (outlive.App().task(report), task.using(priority=1), Task(app, report, Policy(), task.name)):
        with pytest.raises(outlive.ConfigError, match=r"report is not a task of this app: put @app.schedule above"):
            app.schedule(every=60)(other)


def test_the_priority_of_a_task_holds_for_its_schedule_too(app):
    app.schedule(every=60)(app.task(priority=2)(report))
    app.schedule(every=60, priority=0, name="urgent")(app.tasks["tests.client.test_schedules.report"])
    assert [one.priority for one in app.declared_schedules.values()] == [2, 0]


def test_a_declaration_loads_neither_cronsim_nor_time_zones():
    """Each fork of a zygote would pay for them."""
    script = (
        "import sys, outlive\napp = outlive.App()\n"
        "def f(): ...\n"
        "app.schedule('0 9 * * *', timezone='Europe/Berlin')(f)\n"
        "print(*{'cronsim', 'zoneinfo', 'threading', 'pydantic'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "\n"
