"""logs: prints what a job has printed and logged, and follows one that runs."""

from __future__ import annotations

import time
from typing import Annotated
from uuid import UUID

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, JobId, Json, app, command
from outlive.cli.job_filter import found_id
from outlive.errors import JobNotFound, no_job
from outlive.humanize import plain
from outlive.output import OutputPart
from outlive.states import OVER

AGAIN_S = 0.25
FIRST_S = 2.0
"""How long the command waits for the first lines of a running job, which its worker has to write."""


@command(app, example="logs ID --follow")
def logs(
    context: CommandContext,
    id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job has finished, through all its attempts.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Only this attempt. The default is the newest one.")
    ] = None,
    json: Json = False,
) -> None:
    """Print what a job has printed and logged."""
    job = found_id(context, "job", id)
    (_follow if follow else _print)(context, job, attempt, _Printer(json=json))


def _print(context: CommandContext, job: UUID, attempt: int | None, printer: _Printer) -> None:
    """Print what there is. A worker needs a moment to write the first lines of a running job."""
    patience = time.monotonic() + FIRST_S
    while (part := _read(context, job, attempt)).live and not part.lines and time.monotonic() <= patience:
        time.sleep(AGAIN_S)
    if part.attempt is None and attempt is not None:
        raise JobNotFound(f"job {job} has no attempt {attempt}")
    printer.print(part)
    if not printer.last:
        screen.complain(f"it has printed nothing yet; it is {part.state}")


def _follow(context: CommandContext, job: UUID, attempt: int | None, printer: _Printer) -> None:
    """Print one attempt to its end, or one after the other until the job has finished."""
    number = attempt
    while True:
        part = _read(context, job, number, printer.last)
        if part.attempt is None and attempt is not None and part.state in OVER:
            raise JobNotFound(f"job {job} has no attempt {attempt}")
        printer.print(part)
        if part.live:
            number = part.attempt  # To its end, even if the next one has begun by then.
        elif part.attempt is not None and attempt is None:
            number = part.attempt + 1
            printer.last = 0
            continue
        elif part.attempt is not None or part.state in OVER:
            return
        time.sleep(AGAIN_S)


def _read(context: CommandContext, job: UUID, attempt: int | None, after: int = 0) -> OutputPart:
    part = context.run(store.watch(job, attempt=attempt, after=after))
    if part is None:
        raise no_job(job)
    return part


class _Printer:
    def __init__(self, *, json: bool) -> None:
        self._json = json
        self.last = 0
        """The number of the last line of the present attempt."""
        self._attempt: int | None = None

    def print(self, part: OutputPart) -> None:
        if not part.lines:
            return
        if self._json:
            for number, line in enumerate(part.lines, part.before + 1):
                screen.print_json({"attempt": part.attempt, "line": number, "text": line}, indent=0)
        else:
            head = [f"--- attempt {part.attempt}"] if self._attempt not in (None, part.attempt) else []
            lost = [f"[{missing:,} lines are not kept]"] if (missing := part.before - self.last) > 0 else []
            print(*head, *lost, *map(plain, part.lines), sep="\n", flush=True)
        self._attempt = part.attempt
        self.last = part.before + len(part.lines)
