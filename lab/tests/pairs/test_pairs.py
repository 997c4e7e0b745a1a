"""Pairs of statements: none is forgotten, the cuts stop where they should, and what is broken on purpose is found."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from outlive import db, sql
from outlive_lab.pairs import cuts
from outlive_lab.pairs.actions import ACTIONS
from outlive_lab.pairs.command import Company, Options, Share, Tally, keep, kept, shares, theatre
from outlive_lab.pairs.unchanging import UNCHANGING

CALLED = re.compile(r"grant execute on function([^;]+?)to outlive_(?:enqueue|job|protocol);")
SEEDED = {
    "a verb that does not look again after it has waited": (
        *("take_unclaimed", "for look in 1..2 loop", "for look in 1..1 loop", "queued: pause the queue / block J"),
    ),
    "a signal that does not lock the job": (
        *("send", "where j.id = job for no key update", "where j.id = job", "running: suspend J / send to J"),
    ),
    "a wait that does not lock what it needs": (
        *("lock_needed", "order by j.id for share", "order by j.id"),
        "running: let wait for the other J / let wait for the other K",
    ),
    "an end that counts what it has read before": (
        *("count_in_batches", "succeeded = t.succeeded + n.succeeded", "succeeded = n.succeeded"),
        "running: succeed J / succeed K",
    ),
    "a batch that is closed while jobs are added": (
        *("close_batch", "where t.id = close_batch.id for update", "where t.id = close_batch.id"),
        "opened: enqueue into the batch / close the batch",
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with theatre() as url:
        yield url


def test_every_statement_is_an_action_or_known_to_change_no_job():
    granted = " ".join(CALLED.findall(sql.read("schema/grants.sql")))
    known = {*sql.texts(), *re.findall(r"outlive\.(\w+)\(", granted)}
    acting = {action.statement for action in ACTIONS}
    assert known - acting - UNCHANGING == set(), "add it to the actions of the pairs, or to those that change no job"
    assert (acting | UNCHANGING) - known == set(), "it is gone"
    assert acting & UNCHANGING == set()


def test_a_cut_stands_before_each_statement_that_names_a_table():
    body = (
        "\nbegin\n  if exists (\n    select from outlive.jobs)\n  then\n    delete from outlive.held h;\n  end if;\nend"
    )
    assert re.sub(r"\s+", " ", cuts.cut_up("f", body)) == (
        " begin if pairs.cut('f 2 jobs') then end if; if exists ( select from outlive.jobs) then"
        " if pairs.cut('f 4 held') then end if; delete from outlive.held h; end if; end "
    )


def findings(url: str, pair: str) -> Iterator[str]:
    options = Options(only=pair)
    company = Company(url, options)
    with closing(company.ring):
        for share in shares(options):
            yield from company.play(share).findings


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", SEEDED)
def test_what_is_broken_on_purpose_is_found(url, what):
    function, old, new, pair = SEEDED[what]
    query = "select pg_get_functiondef(oid) from pg_proc where proname = %s and pronamespace = 'outlive'::regnamespace"
    with db.connect(url) as connection:
        [[right]] = connection.execute(query, [function]).fetchall()
        assert old in right
        assert list(findings(url, pair)) == []
        connection.execute(right.replace(old, new, 1).encode())
        try:
            assert next(findings(url, pair), None), "the first one is enough"
        finally:
            connection.execute(right.encode())


def test_a_run_goes_on_after_what_an_earlier_one_has_kept(tmp_path):
    options = Options(state=tmp_path / "played")
    assert kept(options) == []
    tally = Tally(Share("once", "waiting", "cancel J"), orders=7, whole=True, repeats=Counter({"40P01": 2}))
    keep(options, tally)
    assert kept(options) == [tally]
