"""Values that clients in other languages can store: every page and command works, whatever they are."""

import json

import pytest

from outlive import App, OutliveError
from tests.driving.commands import Cli

DEEP = b"[" * 3000 + b"]" * 3000
STRANGE = [DEEP, b"[1e400]", b"[" + b"9" * 5000 + b"]", b'{"a":' * 2000 + b"[]" + b"}" * 2000]


def refuse_constant(name: str) -> None:
    raise ValueError(name)


@pytest.mark.parametrize("data", STRANGE, ids=["deep", "1e400", "digits", "object"])
def test_json_that_common_parsers_refuse_is_shown(dashboard, database_url, queue, data):
    job = queue.make(args=data)
    claimed = queue.run_job(job, result=data)
    queue.execute("update outlive.attempts set cpu_s = 'NaN' where token = %s", [claimed.token])
    store = "insert into outlive.records values ('s', '', 'k', %s, 'NaN', %s, now(), now())"
    queue.execute(store.encode(), [data.decode(), job])
    cli = Cli(database_url)
    for path in (f"/jobs/{job}", "/jobs", "/", "/jobs?text=e400"):
        assert dashboard.get(path).status_code == 200
    for command in (["show", job], ["show", job, "--full"], ["jobs"], ["records"], ["records", "--csv"]):
        ran = cli(*command)
        assert (ran.code, ran.err) == (0, ""), command
    shown = json.loads(cli("show", job, "--json").out, parse_constant=refuse_constant)
    assert shown["args"] == shown["result"] == data.decode()
    assert shown["attempts"][0]["cpu_s"] is None
    [record] = json.loads(cli("records", "--json").out, parse_constant=refuse_constant)
    assert record["data"] == data.decode()
    with pytest.raises(OutliveError, match="its result can't be read"):
        App(database_url).get_job(job).result(timeout=10)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "-1e300", "1e300"])
def test_any_number_is_shown(dashboard, database_url, queue, number):
    job = queue.make()
    claimed = queue.run_job(job, peak_memory_bytes=2**63 - 1)
    queue.execute("update outlive.attempts set cpu_s = %s where token = %s", [number, claimed.token])
    assert dashboard.get(f"/jobs/{job}").status_code == 200
    ran = Cli(database_url)("show", job)
    assert (ran.code, ran.err) == (0, "")
    assert f"cpu {float(number):g} s" in ran.out


def test_json_that_every_parser_reads_is_shown_as_it_is(database_url, queue):
    args = b'{"text": "' + b"[" * 1000 + b'\\"", "more": ' + b"[" * 100 + b"]" * 100 + b"}"
    job = queue.make(args=args)
    assert json.loads(Cli(database_url)("show", job, "--json").out)["args"] == json.loads(args)
