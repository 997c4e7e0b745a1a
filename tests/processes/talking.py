"""Jobs that say something, as an app that workers import."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import outlive

app = outlive.App()
log = logging.getLogger("shop.parser")


@app.task(max_attempts=1)
def talk() -> None:
    print("printed")
    log.debug("unheard")
    log.info("parsed %d pages", 3)
    print("to stderr", file=sys.stderr)
    try:
        raise ValueError("no price")
    except ValueError:
        log.exception("page 4")
    os.write(1, b"from native code\n")
    subprocess.run(["echo", "from a program"], check=True)
    print("unfinished", end="")


class Stubborn:
    def __str__(self) -> str:
        raise RuntimeError("I have no text")


@app.task
def talk_in_detail() -> None:
    log.debug("in detail")
    log.info("in short")


@app.task
def talk_with_fields() -> None:
    fields = {"order": 7, "lines": [{"at": Path("/shop"), "url": "postgresql://me:secret@host/db"}]}
    log.info("sold", extra=fields)
    log.info("too much", extra={"text": "x" * 5_000})
    log.info("stubborn", extra={"one": Stubborn()})
    for forged in ("{", "7" * 5000, "[" * 20_000, "[" * 400 + "]" * 400):
        print(f"\x1eINFO\x1fshop\x1f{forged}\x1f\x1fforged")


@app.task(preload=False)
def talk_in_a_new_interpreter() -> None:
    logging.getLogger("shop").info("in a new interpreter")


@app.task(recycle_after=1000)
def talk_warmly(word: str) -> None:
    """Without a word, be silent."""
    if word:
        print(f"printed {word}")
        log.warning("logged %s", word)


@app.task
def configure_and_talk() -> None:
    logging.basicConfig(format="%(levelname)s of my own: %(message)s", level=logging.DEBUG)
    log.debug("heard")


@app.task
def talk_to_root() -> None:
    logging.error("no logger")
    log.warning("another")


@app.task(max_attempts=2, backoff=60)
def fail() -> None:
    raise ValueError("no price")


@app.task(max_attempts=2, backoff=0)
def fail_for_good() -> None:
    raise ValueError(
        "no price at postgresql://me:secret@host/db\n2030-01-01T00:00:00.000Z ERROR   outlive.worker: forged"
    )


@app.task(max_attempts=1)
def fail_when(path: str) -> None:
    """Fail for good as soon as this file is there."""
    print("waiting")
    while not Path(path).exists():
        time.sleep(0.01)
    raise ValueError("no price")


@app.task(max_attempts=2, backoff=0)
def decide(how: str) -> None:
    """Say how this job ends, because another exception was raised or by itself."""
    if how == "fail by itself":
        raise outlive.Fail("the page is empty")
    try:
        read_price()
    except ValueError as error:
        if how == "retry":
            raise outlive.Retry("the page is empty", after=0) from error
        if how == "hide":
            raise outlive.Fail("the page is empty") from None
        raise outlive.Fail("the page is empty")  # noqa: B904 - its context is enough.


def read_price() -> None:
    raise ValueError("no price")


@app.task
def flood(lines: int) -> None:
    for number in range(lines):
        print("line", number)


@app.task
def shout() -> None:
    """Hostile output."""
    os.write(1, b"\x1b[2J2030-01-01T00:00:00.000Z ERROR   outlive.worker: Dead worker detected\r\n")
    os.write(1, b"\xff\xfe\0binary\n")
    os.write(1, b"\x1eERROR\nx\x1fforged\x1f\n")
    log.info("first\nsecond \x1b[31m postgresql://me:secret@host/db")
    os.write(1, b"x" * 300_000)


@app.task(timeout=0.3, max_attempts=2, backoff=0)
def hang() -> None:
    time.sleep(60)


@app.task
def talk_until(path: str) -> None:
    """Say something all the time, and one thing when the file `said` beside this one is there."""
    print("begun")
    said = Path(path).with_name("said")
    for number in range(1, 10_000):
        if Path(path).exists():
            break
        log.info("waiting %d", number)
        if said.exists():
            said.unlink()
            print("said at last")
        time.sleep(0.02)
    print("over")


@app.task(max_crashes=1)
def crash_while_talking() -> None:
    print("last words", end="")
    os.abort()
