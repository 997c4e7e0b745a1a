"""The coin example: its prices, also while its workers are killed, and the addresses that it refuses."""

import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import outlive
from coins import catalog, fetching, site, tasks
from outlive import config, store
from outlive.states import State
from tests.driving.databases import new_database
from tests.driving.making import Queue
from tests.driving.workers import ROOT, Start, Worker
from tests.waiting import eventually

Points = dict[tuple[str, str, str], tuple[object, float]]
INTAKES = catalog.intakes(8)
KILLS = 4
FAST_PER_MINUTE = 2400.0


class Run:
    """The example, from the first coin to the last valuation, on one database."""

    def __init__(self, url: str, start: Start, folder: Path) -> None:
        self.url, self._start, self._folder = url, start, folder
        self.connection = Queue.at(url)
        tasks.app.configure(config.load(flags={"database_url": url}))

    def worker(self) -> Worker:
        return self._start(
            slots=3, target="coins.tasks:app", url=self.url, folder=ROOT / "examples", cache_dir=str(self._folder)
        )

    def begin(self) -> list[Worker]:
        """Start two workers. The sites admit more requests than usual, to save time."""
        workers = [self.worker(), self.worker()]
        for name in tasks.SOURCES:
            assert self.connection.run(store.set_source(name, {"rate_limit_per_minute": FAST_PER_MINUTE}))
        return workers

    def collect(self, intakes: Sequence[catalog.Intake]) -> None:
        tasks.app.enqueue_many(tasks.collect.job(intake) for intake in intakes)

    def count(self, query: str) -> int:
        [(number,)] = self.connection.execute(query.encode()).fetchall()
        return int(number)

    def unfinished(self) -> int:
        return self.count(
            "select (select count(*) from outlive.waiting) + (select count(*) from outlive.running) "
            "+ (select count(*) from outlive.held where why <> 'quarantined')"
        )

    def busy(self, workers: Sequence[Worker]) -> list[Worker]:
        """The workers that have jobs. A killed worker still has jobs too, but is not among `workers`."""
        have = {str(id) for (id,) in self.connection.execute("select distinct worker from outlive.running")}
        return [worker for worker in workers if worker.id in have]

    def settle(self) -> None:
        eventually(lambda: not self.unfinished(), within_s=90, what="all jobs are done")

    def points(self) -> Points:
        found = tasks.app.records()
        return {
            (one.scope, one.source, one.dedupe_key): (one.data, one.strength)
            for one in found
            if one.scope.startswith(tasks.PRICES)
        }

    def valuations(self) -> dict[str, object]:
        return {one.dedupe_key: one.data for one in tasks.app.records(tasks.VALUATIONS)}

    def intakes(self) -> dict[str, object]:
        return {one.dedupe_key: one.data for one in tasks.app.records(tasks.INTAKES)}

    def value_again(self) -> None:
        """Value the coins again from the same prices, as a job that comes late or runs twice does."""
        for intake in INTAKES[:2]:
            before = self.valuation(intake["id"])
            job = tasks.value.enqueue(intake["id"])
            job.result(timeout=60)
            after = self.valuation(intake["id"])
            assert (after.job_id, after.data) == (job.id, before.data)
            assert after.updated_at > before.updated_at

    def valuation(self, intake: str) -> outlive.Record:
        [one] = [one for one in tasks.app.records(tasks.VALUATIONS) if one.dedupe_key == intake]
        return one

    def killers(self) -> set[tuple[str, str | None]]:
        return {(row["outcome"], row["signal"]) for row in self.connection.run(store.list_killers())}

    def states(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in self.connection.run(store.count_jobs()):
            counts[row["state"]] = counts.get(row["state"], 0) + row["jobs"]
        return counts


def expected() -> set[tuple[str, str, str]]:
    """The keys of all offers on pages that can be read."""
    keys = set()
    for intake in INTAKES:
        for name in catalog.KINDS:
            if not site.is_poison(name, intake["title"]):
                shown = catalog.pages(name, intake["title"], intake["series"], intake["denomination"])
                keys |= {(tasks.prices_of(intake["id"]), name, offer.path) for page in shown for offer in page}
    return {(scope, name, path.partition("?")[0]) for scope, name, path in keys}


def found_paths(points: Points) -> list[tuple[str, str, str]]:
    return sorted(
        (scope, source, str(data["url"]).partition("/offers")[2])
        for (scope, source, _), (data, _) in points.items()
        if isinstance(data, dict)
    )


@pytest.mark.long
@pytest.mark.timeout(240)
def test_killing_workers_at_random_changes_no_price_and_no_valuation(
    server_url, database_url, start, tmp_path, monkeypatch
):
    monkeypatch.setattr(site, "HANGS", 1)  # One hang says as much as two, and takes half as long.
    with site.serve() as sites, new_database(server_url) as url:
        places = site.places(sites)
        monkeypatch.setenv("COINS_SITES", places)
        calm = Run(url, start, tmp_path / "calm")
        with calm.connection:
            workers = calm.begin()
            calm.collect(INTAKES)
            calm.settle()
            points, valuations = calm.points(), calm.valuations()
            assert calm.intakes() == {intake["id"]: intake for intake in INTAKES}
            assert calm.killers() == {("crashed", "SIGSEGV"), ("out_of_memory", "SIGKILL")}
            assert calm.states() == expected_states()
            assert calm.count("select count(*) from outlive.attempts where outcome = 'timed_out'") == site.HANGS
            calm.value_again()
        for worker in workers:
            worker.stop()
    paths = sorted((scope, name, path.removeprefix("/offers")) for scope, name, path in expected())
    assert found_paths(points) == paths
    assert valuations.keys() == {intake["id"] for intake in INTAKES}

    # The sites remember nothing of the first run, and are where they were: addresses are part of what is found.
    ports = {name: int(place.partition(":")[2]) for name, place in _split(places)}
    with site.serve(ports):
        wild = Run(database_url, start, tmp_path / "wild")
        with wild.connection:
            kill_at_random(wild, wild.begin())
            wild.settle()
            assert wild.points() == points
            assert wild.valuations() == valuations
            assert wild.killers() == {("crashed", "SIGSEGV"), ("out_of_memory", "SIGKILL")}
            assert wild.states() == expected_states()
            assert wild.count("select count(*) from outlive.attempts where outcome = 'lost'") > 0


def test_a_coin_is_valued_from_all_three_sites_after_a_site_that_asks_for_patience(outlive_jobs, monkeypatch):
    """In this process, where a debugger would stop, and without waiting."""
    coin = next(one for one in catalog.intakes(60) if faults_of(one) == ["patience"])
    with site.serve() as sites:
        monkeypatch.setattr(tasks, "SITES", dict(_split(site.places(sites))))
        tasks.collect.enqueue(coin)
        ran = outlive_jobs.run(delayed=True)
    tried = [(one.task.rpartition(".")[2], one.attempt) for one in ran]
    assert sorted(tried) == [("collect", 1), *[("search", 1)] * 3, ("search", 2), *[("value", 1)] * 3]
    (valuation,) = tasks.app.records(tasks.VALUATIONS)
    assert valuation.data == ran[-1].result
    assert len(tasks.app.records(tasks.prices_of(coin["id"]))) == valuation.data["prices"]


def faults_of(coin: catalog.Intake) -> list[str]:
    """What is wrong with the pages that the sites have for a coin."""
    found = []
    for name in catalog.KINDS:
        shown = catalog.pages(name, coin["title"], coin["series"], coin["denomination"])
        found += [site.fault_of(name, coin["title"], number + 1) for number in range(len(shown))]
    return [fault for fault in found if fault is not None]


def expected_states() -> dict[str, int]:
    """Each coin is collected once, searched for on three sites and valued once for each that could be read."""
    searches = 3 * len(INTAKES)
    poisoned = sum(site.is_poison(name, intake["title"]) for name in catalog.KINDS for intake in INTAKES)
    return {State.SUCCEEDED: len(INTAKES) + 2 * (searches - poisoned), State.QUARANTINED: poisoned}


def _split(places: str) -> list[tuple[str, str]]:
    return [(name, place) for name, _, place in (word.partition("=") for word in places.split(","))]


def kill_at_random(run: Run, workers: list[Worker]) -> None:
    """Bring the coins in portions. Kill one of the workers that work on each portion, and start another."""
    chance = random.Random(5)
    portion = -(-len(INTAKES) // KILLS)
    for n in range(KILLS):
        run.collect(INTAKES[n * portion : (n + 1) * portion])
        victim = chance.choice(eventually(lambda: run.busy(workers), within_s=30, what="a worker has jobs"))
        victim.kill()
        workers.remove(victim)
        workers.append(run.worker())


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "240.0.0.1", "fec0::1", "feff::1", "4000::1", "e000::1", "::2"),
        *("::1", "::", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_an_address_that_is_not_public_is_not_called(address):
    assert not fetching.is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_an_address_that_is_public_may_be_called(address):
    assert fetching.is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0x7f000001"])
def test_this_machine_is_refused_however_it_is_written(host):
    with site.serve() as sites, pytest.raises((fetching.Refused, ConnectionError)):
        fetching.get(f"http://{host}:{sites['shop'].place.partition(':')[2]}/search")
    assert sites["shop"].requests == 0


@contextmanager
def redirecting_to(target: str) -> Iterator[str]:
    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Redirect) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_redirect_is_looked_at_like_any_address():
    with site.serve() as sites, redirecting_to(f"http://{sites['dealer'].place}/search") as place:
        with pytest.raises(fetching.Refused, match="not public"):
            fetching.get(f"http://{place}/", allowed=[place])
        assert sites["dealer"].requests == 0


def test_the_address_that_was_looked_at_is_the_one_that_is_called(monkeypatch):
    """A name that is resolved a second time may mean another place by then."""
    asked = []

    def resolve(host: str, *of: int, **more: int) -> object:
        asked.append(host)
        return real(host if host[0].isdigit() else "127.0.0.1", *of, **more)

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    intake = INTAKES[4]
    with site.serve() as sites:
        place = f"coins.example:{sites['dealer'].place.partition(':')[2]}"
        query = f"title={intake['title']}&series={intake['series']}&denomination={intake['denomination']}&page=9"
        assert "page 9" in fetching.get(f"http://{place}/search?{query}", allowed=[place])
    assert asked.count("coins.example") == 1
