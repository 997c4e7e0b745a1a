"""The proxy of the tests of faults does nothing by itself, and exactly what it is told."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.proxy import Boundary, Proxy, Side, Way
from tests.waiting import eventually


@pytest.fixture
def direct(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create table seen (n int)")
        yield connection


def count(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("select count(*) from seen").fetchone()
    assert row
    return int(row[0])


def test_everything_passes_and_every_round_trip_has_two_sides(
    database_url: str, direct: psycopg.Connection[Any], tmp_path: Path
) -> None:
    seen: list[tuple[int, Side, str]] = []
    proxy = Proxy(database_url, tmp_path, at_boundary=lambda b: seen.append((b.n, b.side, b.text)))
    with proxy, psycopg.connect(proxy.url, autocommit=True) as connection:
        for n in range(2):
            connection.execute("insert into seen values (%s)", [n], prepare=True)
        with connection.cursor().copy("copy seen from stdin") as copy:
            copy.write("7\n" * 100_000)
        assert connection.execute("select repeat('x', 3000000)").fetchone() == ("x" * 3_000_000,)
        assert count(connection) == count(direct) == 100_002
        # A statement that is prepared goes there by itself the first time.
        texts = ["", *["insert into seen values ($1)"] * 3, "copy seen from stdin"]
        texts += ["select repeat('x', 3000000)", "select count(*) from seen"]
        assert seen == [(n, side, text) for n, text in enumerate(texts, 1) for side in Side]
        assert proxy.boundaries == len(texts)


def test_a_way_by_port_and_by_socket_lead_to_the_same(database_url: str, direct: psycopg.Connection[Any]) -> None:
    with Proxy(database_url) as proxy, psycopg.connect(proxy.url, autocommit=True) as connection:
        connection.execute("listen something")
        direct.execute("notify something")
        assert [heard.channel for heard in connection.notifies(timeout=5, stop_after=1)] == ["something"]


@pytest.mark.parametrize("side", Side)
def test_a_cut_comes_before_the_server_hears_or_before_the_client_does(
    database_url: str, direct: psycopg.Connection[Any], tmp_path: Path, side: Side
) -> None:
    def cut(boundary: Boundary) -> None:
        if boundary.side is side and boundary.text.startswith("insert"):
            boundary.link.cut()

    with Proxy(database_url, tmp_path, at_boundary=cut) as proxy:
        with psycopg.connect(proxy.url, autocommit=True) as connection, pytest.raises(psycopg.OperationalError):
            connection.execute("insert into seen values (%s)", [1])
        with psycopg.connect(proxy.url) as again:
            assert count(again) == (1 if side is Side.AFTER else 0)


@pytest.mark.parametrize("way", Way)
def test_bytes_held_back_in_one_direction_arrive_when_the_link_is_healed(
    database_url: str, direct: psycopg.Connection[Any], tmp_path: Path, way: Way
) -> None:
    with Proxy(database_url, tmp_path) as proxy, psycopg.connect(proxy.url, autocommit=True) as connection:
        proxy.silence(way)
        insert = threading.Thread(target=connection.execute, args=["insert into seen values (1)"])
        insert.start()
        if way is Way.TO_CLIENT:
            eventually(lambda: count(direct) == 1, what="the server hears")
        eventually(lambda: proxy.boundaries == 2)
        assert insert.is_alive()
        assert count(direct) == (1 if way is Way.TO_CLIENT else 0)
        proxy.heal()
        insert.join()
        assert count(direct) == 1


def test_a_silent_way_takes_connections_and_says_nothing(database_url: str, tmp_path: Path) -> None:
    with Proxy(database_url, tmp_path) as proxy:
        proxy.silence()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(proxy.url, connect_timeout=2)


def test_a_slow_way_takes_its_time(database_url: str, tmp_path: Path) -> None:
    with Proxy(database_url, tmp_path) as proxy, psycopg.connect(proxy.url, autocommit=True) as connection:
        proxy.latency_s = 0.05
        before = connection.execute("select clock_timestamp()").fetchone()
        after = connection.execute("select clock_timestamp()").fetchone()
        assert before
        assert after
        assert (after[0] - before[0]).total_seconds() >= 0.1
        proxy.latency_s, proxy.bytes_per_s = 0.0, 1_000_000
        connection.execute("select repeat('x', 200000)")
        later = connection.execute("select clock_timestamp()").fetchone()
        assert later
        assert (later[0] - after[0]).total_seconds() >= 0.25
