"""The command: find a database, play the game, and tell the verdict."""

from __future__ import annotations

import time

from outlive import db
from outlive.cli import screen
from outlive.config import Config
from outlive.temporary.program import stopped_by_sigterm
from outlive_lab.gameday import journal, report, tables
from outlive_lab.gameday.game import Game
from outlive_lab.gameday.options import Options
from outlive_lab.gameday.server import server
from outlive_lab.gameday.verdict import judge

STOPPED = 130


def main(config: Config, options: Options) -> int:
    """0 if everything holds, 1 if something does not, 130 if the game was stopped and everything held until then."""
    began = time.monotonic()
    with stopped_by_sigterm(), db.translated_errors(), server(config, ha=options.ha) as (found, home):
        with db.connect(found.url) as connection:
            tables.make(connection, force=options.force)
        with report.progress() as progress:
            game = Game(options, found, home, progress)
            history = game.play()
        with db.connect(found.url) as connection:
            held = tables.read(connection, history, names=game.names)
            version = f"{connection.info.server_version // 10000}.{connection.info.server_version % 10000}"
            verdict = judge(options, history, held, seconds=time.monotonic() - began, postgres=version)
            summary = verdict.as_json(tables.evidence(connection, verdict.suspects()))
            if found.own is None and verdict.right:
                tables.forget(connection)
        if options.json:
            screen.print_json(summary, indent=-1)
        else:
            report.show(verdict)
        if options.report is not None:
            page = report.write(verdict, summary, options.report)
            journal.write(held.lines, page.with_suffix(".history.gz"))
            if not options.json:
                screen.say(f"the report is {page}")
            if not verdict.right:
                game.keep_logs(page.with_suffix(".log"))
    if not verdict.right:
        return 1
    return STOPPED if history.stopped else 0
