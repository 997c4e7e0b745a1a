"""The command: a database that may be used, the game, and what comes out of it."""

from __future__ import annotations

import time

from outlive import db
from outlive.cli import screen
from outlive.config import Config
from outlive.lab.gameday import report, tables
from outlive.lab.gameday.game import Game
from outlive.lab.gameday.options import Asked
from outlive.lab.gameday.server import server
from outlive.lab.gameday.verdict import Verdict, judge
from outlive.lab.worker_process import stopped_by_sigterm

STOPPED = 130


def main(config: Config, asked: Asked) -> int:
    """0 only if everything holds; 1 if something does not; 130 if it was stopped and nothing was wrong until then."""
    began = time.monotonic()
    with stopped_by_sigterm(), db.translated_errors(), server(config) as (found, home):
        with db.connect(found.url) as connection:
            tables.make(connection, force=asked.force)
        with report.audience() as audience:
            game = Game(asked, found, home, audience)
            history = game.play()
        with db.connect(found.url) as connection:
            held = tables.read(connection, names=game.names)
            version = f"{connection.info.server_version // 10000}.{connection.info.server_version % 10000}"
            verdict = judge(asked, history, held, seconds=time.monotonic() - began, postgres=version)
            told = verdict.as_json(tables.evidence(connection, verdict.suspects()))
            if found.own is None and verdict.right:
                tables.forget(connection)
        _tell(verdict, told, asked)
        if asked.report is not None and not verdict.right:
            game.keep_logs(asked.report / f"gameday-{asked.seed}.log")
    if not verdict.right:
        return 1
    return STOPPED if history.stopped else 0


def _tell(verdict: Verdict, told: dict[str, object], asked: Asked) -> None:
    if asked.json:
        screen.print_json(told, indent=-1)
    else:
        report.show(verdict)
    if asked.report is not None:
        page = report.write(verdict, told, asked.report)
        if not asked.json:
            screen.say(f"the report is {page}")
