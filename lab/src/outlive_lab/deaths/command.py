"""The command: play rounds until there are enough deaths, check each, and keep what they have shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from outlive import db, migrate
from outlive.cli import screen
from outlive.config import Config
from outlive.errors import ConfigError
from outlive.temporary.program import stopped_by_sigterm
from outlive.temporary.server import temporary_home, temporary_server
from outlive_lab.deaths import report
from outlive_lab.deaths.checker import Tables, check
from outlive_lab.deaths.report import Outcome, Standing
from outlive_lab.deaths.round import Round

SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "600", "max_wal_size": "4GB"}
"""The server crashes, and the machine does not, so nothing waits for the disk."""
STOPPED = 130
TELL_S, LINE_S = 0.5, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    seed: int
    deaths: int
    report: Path | None
    resume: bool
    json: bool


def main(config: Config, options: Options) -> int:
    """0 if everything holds, 1 if something does not, 130 if it was stopped and everything held until then."""
    logging.getLogger("outlive").setLevel(logging.CRITICAL)  # A line for each death would cost more than the death.
    standing = report.read(options.report, options.seed) if options.resume else Standing(seed=options.seed)
    stopped = False
    with stopped_by_sigterm(), db.translated_errors(), _server(config) as (url, own):
        try:
            while standing.deaths < options.deaths and standing.right:
                standing.rounds.append(_play(url, own, options, standing))
                if options.report is not None:
                    report.keep(standing, options.report)
        except KeyboardInterrupt:
            stopped = True
    if options.report is not None:
        report.write(standing, options.report)
    if options.json:
        screen.print_json(standing.summary(), indent=-1)
    else:
        report.show(standing)
    return 1 if not standing.right else STOPPED if stopped else 0


def _play(url: str, own: Path | None, options: Options, standing: Standing) -> Outcome:
    number, began = len(standing.rounds) + 1, time.monotonic()
    one = Round(url, own, f"{options.seed} {number}", options.deaths - standing.deaths)
    history = asyncio.run(one.play(_teller(standing, options)))
    played_s = time.monotonic() - began
    with psycopg.connect(url, autocommit=True) as connection:
        tables = Tables(connection)
        wrong = [*check(history, tables), *_verify(url)]
        return Outcome.of(history, tables, wrong, played_s, one.drained_s, connection.info.server_version)


def _verify(url: str) -> Iterator[tuple[str, str, str]]:
    """What `outlive verify` finds."""
    words = [sys.executable, "-m", "outlive", "verify", "--json", "--database-url", url]
    said = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if said.returncode:
        yield "verify", "outlive verify", said.stdout.decode()[-2000:]


def _teller(standing: Standing, options: Options) -> Callable[[int], None]:
    """Shows how far it is: in place on a terminal, elsewhere a line from time to time."""
    before, began, terminal = standing.deaths, time.monotonic(), sys.stderr.isatty()
    told = began

    def tell(deaths: int) -> None:
        nonlocal told
        if (now := time.monotonic()) - told < (TELL_S if terminal else LINE_S):
            return
        told = now
        rate = deaths / (now - began)
        left_s = (options.deaths - before - deaths) / rate if rate else 0.0
        line = f"{before + deaths:,} of {options.deaths:,} deaths, {rate:.0f} a second, {left_s / 60:.0f} min left"
        print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return tell


@contextmanager
def _server(config: Config) -> Iterator[tuple[str, Path | None]]:
    """The configured database, or a temporary server, which crashes in every other round."""
    with contextlib.ExitStack() as stack:
        if config.database_url is None:
            home = stack.enter_context(temporary_home("deaths"))
            url, own = stack.enter_context(temporary_server(home, SETTINGS)), home / "server"
        else:
            url, own = migrate.address(config), None
        with db.connect(url) as connection:
            migrate.make_ready(connection, config)
            [(jobs,)] = connection.execute("select count(*) from outlive.jobs").fetchall()
            if jobs and connection.execute("select to_regnamespace('outlive_deaths')").fetchall() == [(None,)]:
                raise ConfigError("this database has jobs, which would be deleted: give an empty one")
        yield url, own
