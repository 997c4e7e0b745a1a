"""The commands sources and records."""

import csv
import io
import json
from typing import Any

import pytest

import outlive
from outlive import store
from outlive.model import Ended, SourceLimits
from outlive.states import Outcome
from tests.driving.commands import Cli, ended
from tests.driving.making import WORKER, Queue, lane

HOSTILE = "=cmd() \x1b[2J [red]x[/red]\n\"two\", 'three'"


@pytest.fixture
def shop(queue: Queue) -> None:
    """A source that an app has declared."""
    said = SourceLimits("shop", rate_limit_per_minute=1, burst=2)
    queue.run(store.register_sources([said, SourceLimits("bank")]))


def succeed_with(queue: Queue, source: str, *records: dict[str, Any]) -> None:
    """Let a job of this source succeed with these records."""
    queue.make(source=source)
    (claimed,) = queue.claim([lane(source=source, asks=True)], limit=1)
    end = Ended(claimed.token, Outcome.SUCCEEDED, records=json.dumps(records).encode())
    queue.run(store.write_end(WORKER, end))


def shown(cli: Cli, name: str = "shop") -> dict[str, Any]:
    (row,) = [row for row in cli("sources", "--json").json if row["name"] == name]
    return dict(row)


def test_sources_are_listed_with_the_keys_that_others_rely_on(cli, queue, shop):
    assert queue.run(store.ask_source("shop", None)).granted
    expected = {"enabled": True, "rate_limit_per_minute": 1, "tokens": 1, "failure_streak": 0, "breaker": "closed"}
    row = shown(cli)
    assert {key: row[key] for key in expected} == expected
    assert row["paused_until"] is None
    assert shown(cli, "bank")["tokens"] is None
    table = cli("sources").out
    assert " 1/min" in table
    assert "1 of 2" in table
    assert "no limit" in table
    assert [row["name"] for row in cli("sources", "--json", "--limit", 1).json] == ["bank"]


def test_without_sources_it_says_so(cli):
    assert cli("sources").out == "no app has declared a source\n"
    assert cli("sources", "--json").json == []


def test_a_breaker_that_is_open_is_seen(cli, queue, shop):
    queue.run(store.count_outcomes([("shop", None, False)] * 5))
    assert shown(cli)["breaker"] == "open"
    assert shown(cli)["paused_until"] is not None
    assert "open" in cli("sources").out
    assert cli("sources", "resume", "shop").out == "source shop is resumed\n"
    assert (shown(cli)["breaker"], shown(cli)["failure_streak"]) == ("closed", 0)


def test_set_overrules_the_app_until_it_is_taken_back(cli, shop):
    ran = cli("sources", "set", "shop", "rate_limit_per_minute=6.5", "max_concurrency=3")
    assert ran.out == "shop: rate_limit_per_minute is 6.5, max_concurrency is 3\n"
    row = shown(cli)
    assert (row["rate_limit_per_minute"], row["burst"], row["max_concurrency"]) == (6.5, 2, 3)
    ran = cli("sources", "set", "shop", "rate_limit_per_minute=")
    assert ran.out == "shop: rate_limit_per_minute is as the app declares it\n"
    assert (shown(cli)["rate_limit_per_minute"], shown(cli)["max_concurrency"]) == (1, 3)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("speed=3", "is not KEY=VALUE: use one of the keys rate_limit_per_minute, burst"),
        ("burst", "is not KEY=VALUE"),
        ("burst=many", "burst is 'many': it must be a whole number"),
        ("burst=1.5", "burst is '1.5': it must be a whole number"),
        ("rate_limit_per_minute=fast", "is 'fast': it must be a number"),
        ("rate_limit_per_minute=0", "must be a number above zero"),
        ("rate_limit_per_minute=nan", "must be a number above zero"),
        ("rate_limit_per_minute=inf", "must be a number above zero"),
        ("breaker_pause_s=-1", "must be a number above zero"),
    ],
)
def test_set_refuses_values_that_make_no_sense_and_changes_nothing(cli, shop, word, reason):
    before = shown(cli)
    ran = cli("sources", "set", "shop", "max_concurrency=1", word)
    assert ran.code == 2
    assert reason in " ".join(ran.err.split())
    assert shown(cli) == before


def test_pause_and_resume_switch_a_source_off_and_on(cli, shop):
    assert cli("sources", "pause", "shop").out == "source shop is paused; `outlive sources resume shop` resumes it\n"
    assert shown(cli)["enabled"] is False
    assert "paused by an operator" in cli("sources").out
    assert cli("sources", "resume", "shop").out == "source shop is resumed\n"
    assert shown(cli)["enabled"] is True


def test_records_are_listed_by_scope_and_source(cli, queue):
    assert cli("records").out == "no record matches\n"
    price = {"scope": "prices", "key": "ext_1", "data": {"price": 12}, "strength": 0.5}
    succeed_with(queue, "shop", price, {"scope": "names", "key": "ext_2", "data": "Ann", "strength": 1})
    succeed_with(queue, "bank", price)
    assert cli("records", "--csv", "--watch").code == 2
    rows = cli("records", "--json").json
    assert [(row["scope"], row["source"], row["dedupe_key"]) for row in rows] == [
        ("names", "shop", "ext_2"),
        ("prices", "bank", "ext_1"),
        ("prices", "shop", "ext_1"),
    ]
    assert (rows[2]["data"], rows[2]["strength"]) == ({"price": 12}, 0.5)
    assert [row["data"] for row in cli("records", "--scope", "names", "--json").json] == ["Ann"]
    assert [row["source"] for row in cli("records", "--source", "bank", "--json").json] == ["bank"]
    assert len(cli("records", "--limit", 2, "--json").json) == 2
    table = cli("records").out
    assert '{"price":12}' in table


def test_records_as_csv_can_be_read_back_whatever_is_in_them(cli, queue):
    data = {"title": HOSTILE, "price": 12}
    succeed_with(queue, "shop", {"scope": "prices", "key": 'a,"b"', "data": data, "strength": 0.5})
    ran = ended(cli.process("records", "--csv"))
    assert ran.code == 0, ran.err
    (row,) = csv.DictReader(io.StringIO(ran.out))
    assert list(row) == ["scope", "source", "dedupe_key", "data", "strength", "job_id", "created_at", "updated_at"]
    assert (row["scope"], row["source"], row["dedupe_key"], row["strength"]) == ("prices", "shop", 'a,"b"', "0.5")
    assert json.loads(row["data"]) == data
    assert row["created_at"][10] == "T"


def test_a_source_is_removed_unless_an_unfinished_job_has_it(cli, queue, shop):
    job = queue.make(source="shop")
    refused = cli("sources", "remove", "shop")
    assert refused.code == 1
    assert "the source shop is not removed: it does not exist, or unfinished jobs have it" in refused.err
    queue.run(store.cancel([job]))
    assert cli("sources", "remove", "shop").out == "source shop is removed\n"
    assert [row["name"] for row in cli("sources", "--json").json] == ["bank"]
    assert "remove source" in cli("audit").out
    assert cli("sources", "remove", "shop").code == 1


def test_sources_in_trouble_are_listed_first_and_it_is_said_that_there_may_be_more(cli, queue, shop):
    queue.run(store.count_outcomes([("shop", None, False)] * 5))
    ran = cli("sources", "--limit", 1)
    assert "shop" in ran.out
    assert "bank" not in ran.out
    assert "these are the first 1, and there may be more: --limit" in ran.out
    assert "more" not in cli("sources").out


def test_records_are_read_page_by_page_and_by_key(cli, queue, database_url):
    for scope, source, made in (("prices", "shop", "cab"), ("names", "bank", "ba")):
        records = [{"scope": scope, "key": key, "data": 1, "strength": 1} for key in made]
        succeed_with(queue, source, *records)
    app = outlive.App(database_url)
    keys, page = [], app.records(limit=2)
    while page:
        keys += [(one.scope, one.source, one.dedupe_key) for one in page]
        page = app.records(limit=2, after=page[-1])
    names, prices = [("names", "bank", key) for key in "ab"], [("prices", "shop", key) for key in "abc"]
    assert keys == names + prices
    assert [one.scope for one in app.records(key="a")] == ["names", "prices"]
    assert [row["dedupe_key"] for row in cli("records", "--key", "c", "--json").json] == ["c"]
    app.connections.close()
