"""Pages whose code and commands a test runs as they stand: files, one shell, SQL, and the answers on the page."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.driving.workers import ROOT
from tests.waiting import eventually

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DONE = "-- the block is done --"
READING = re.compile(r"outlive (jobs|show|killers|workers|stats|queues|sources|schedules|batches)\b|grep ")
"""Commands that only look. They are repeated until they answer what the page shows."""


class Block(NamedTuple):
    kind: str
    text: str


class Shell:
    """One shell for all blocks of a page. It stops at the first command that fails."""

    def __init__(self, folder: Path, url: str | None, **environ: str) -> None:
        words = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160", **environ}
        self.process = subprocess.Popen(
            ["bash", "-e"],
            cwd=folder,
            env={**os.environ, **words, **({} if url is None else {"OUTLIVE_DATABASE_URL": url})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> str:
        """Run a block; returns what it has printed."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{text}\necho '{DONE}'\n")
        self.process.stdin.flush()
        said = ""
        for line in self.process.stdout:
            if line.endswith(f"{DONE}\n"):
                return said + line.removesuffix(f"{DONE}\n")
            said += line
        raise AssertionError(f"{text}\nfailed: {said}")


@contextmanager
def shell(folder: Path, url: str | None, **environ: str) -> Iterator[Shell]:
    """A shell that ends with all that it has started."""
    one = Shell(folder, url, **environ)
    try:
        yield one
    finally:
        os.killpg(one.process.pid, signal.SIGTERM)
        one.process.communicate(timeout=60)


def blocks_of(page: str) -> list[Block]:
    """The blocks of code of a page, which is named by its path in docs/."""
    found = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return [Block(kind, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)) for indent, kind, text in found]


def run(page: str, shell: Shell, folder: Path, url: str | None, *, port: int | None = None) -> None:
    """Run a page: write its files, run its commands and SQL, and compare the answers with those that it shows.

    A block of Python, JavaScript or TOML begins with the name of its file; one that begins with `# before` is the code
    of another system, and must only be valid. A command whose answer begins with `outlive: ` must fail. A block without
    a language is for people. The port replaces 8000.
    """
    blocks = [
        Block(kind, text if port is None else text.replace(":8000", f":{port}").replace("port 8000", f"port {port}"))
        for kind, text in blocks_of(page)
    ]
    for (kind, text), (next_kind, expected) in zip(blocks, [*blocks[1:], Block("", "")], strict=True):
        wanted = expected if next_kind == "text" else None
        match kind:
            case "python" | "toml" | "js":
                name = re.match(r"(?:#|//) (\S+\.(?:py|toml|mjs))\n", text)
                if name:
                    (folder / name[1]).write_text(text)
                else:
                    assert text.startswith("# before"), f"{page}: a block of code does not name its file:\n{text}"
                    compile(text, page, "exec")
            case "bash" if wanted is not None and READING.match(text):
                eventually(lambda: shows(shell.run(text), wanted), within_s=60, what=f"{text} shows {wanted}")  # noqa: B023
            case "bash":
                fails = wanted is not None and wanted.startswith("outlive: ")
                said = shell.run(f"! {text}" if fails else text)
                assert wanted is None or shows(said, wanted), said
            case "sql":
                assert url is not None
                with psycopg.connect(url, autocommit=True) as connection:
                    if wanted is None or "outlive.enqueue(" in text:
                        said = answered(connection, text)
                        assert wanted is None or shows(said, wanted), said
                    else:
                        ask = lambda: shows(answered(connection, text), wanted)  # noqa: B023, E731
                        eventually(ask, within_s=30, what=f"{text} answers {wanted}")
            case "text" | "":
                pass
            case _:
                raise AssertionError(f"{page}: a block of {kind} is not run by any test")


def answered(connection: psycopg.Connection[tuple[object, ...]], text: str) -> str:
    """Run some SQL, each statement in its own transaction; returns the rows of all of them."""
    said = ""
    for statement in re.sub(r"--.*", "", text).strip().rstrip(";").split(";\n"):
        rows = connection.execute(statement.encode())
        said += "".join(f"{' | '.join(map(str, row))}\n" for row in rows) if rows.description else ""
    return said


def shows(said: str, wanted: str) -> bool:
    """Whether these lines are in the answer, in this order. `…` stands for anything; blanks don't count."""
    lines = [" ".join(line.split()) for line in wanted.strip().splitlines()]
    patterns = [r"[^\n]*".join(re.escape(part.strip()) for part in line.split("…")) for line in lines]
    squeezed = "\n".join(" ".join(line.split()) for line in said.splitlines())
    return re.search(r"[^\n]*\n(?:[^\n]*\n)*?[^\n]*".join(patterns), squeezed) is not None
