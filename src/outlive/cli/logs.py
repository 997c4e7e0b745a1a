"""logs: prints what a job has said, and follows one that runs."""

import time
from typing import Annotated

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.choosing import found_id
from outlive.cli.command import LOOK, CommandContext, Json, app, command
from outlive.errors import JobNotFound
from outlive.model import Said
from outlive.states import State

AGAIN_S = 0.25
FIRST_S = 2.0
"""How long the command waits for the first lines of a running job, which its worker has to write."""
OVER = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUARANTINED)


@command(app, panel=LOOK)
def logs(
    context: CommandContext,
    id: Annotated[str, typer.Argument(help="The job; the first digits of its id do.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has finished, through all its attempts.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this attempt. The default is the newest one.")
    ] = None,
    json: Json = False,
) -> None:
    """Print what a job has printed and logged.

    Example: outlive logs 01a1dd38 --follow
    """
    job = found_id(context, "job", id)
    printer = _Printer(json=json)
    patience = time.monotonic() + FIRST_S
    number = attempt
    while True:
        said = context.run(store.watch(job, attempt=number, after=printer.last))
        if said is None:
            raise JobNotFound(f"there is no job {job}: it was pruned, or it is in another database")
        if said.attempt is None and attempt is not None and not (follow and said.state not in OVER):
            raise JobNotFound(f"job {job} has no attempt {attempt}")
        printer.print(said)
        if not follow:
            if not said.live or said.lines or time.monotonic() > patience:
                if not printer.last:
                    screen.complain(f"it has said nothing yet; it is {said.state}")
                return
        elif said.live:
            number = said.attempt  # To its end, even if the next one has begun by then.
        elif said.attempt is None:
            if said.state in OVER:
                return
        elif attempt is not None:
            return
        else:
            number = said.attempt + 1
            printer.last = 0
        time.sleep(AGAIN_S if number == said.attempt or said.attempt is None else 0)


class _Printer:
    def __init__(self, *, json: bool) -> None:
        self._json = json
        self.last = 0
        """The number of the last line of the present attempt."""
        self._attempt: int | None = None

    def print(self, said: Said) -> None:
        if not said.lines:
            return
        if not self._json and self._attempt not in (None, said.attempt):
            print(f"--- attempt {said.attempt}", flush=True)
        self._attempt = said.attempt
        if not self._json and (missing := said.before - self.last) > 0:
            print(f"[{missing:,} lines are not kept]", flush=True)
        for number, line in enumerate(said.lines, said.before + 1):
            if self._json:
                screen.print_json({"attempt": said.attempt, "line": number, "text": line}, indent=0)
            else:
                print(screen.plain(line), flush=True)
        self.last = said.before + len(said.lines)
