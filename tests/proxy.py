"""The way to the database, with faults: silence, cuts, latency, and something to do at any statement's boundary.

It knows just enough of Postgres' protocol to see where a round trip begins (a session's start, Query, Sync) and where
it ends (ReadyForQuery), and what the statement was. Both are passed on as a whole: who acts before a statement knows
that the server has heard nothing of it, and who acts after it that the client has heard nothing of the answer.
"""

import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

ENCRYPTION = {struct.pack("!II", 8, number) for number in (80877103, 80877104)}
"""The questions of a client over TCP before its session. The answer is no, because the proxy must read the bytes."""
PARTS_OF_A_STATEMENT = {b"P", b"B", b"D", b"E", b"C"}
SERVER_WAITS = {b"Z", b"R", b"G", b"W"}
"""After these it wants to hear something: ready, authentication, copy in, copy both."""


class Side(Enum):
    """The side of a statement: before it reaches the server, or after its answer, which is on its way to the client."""

    BEFORE = "before"
    AFTER = "after"


class Way(Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@dataclass(slots=True, eq=False)
class Link:
    """One client's connection, and ours to the server for it."""

    client: socket.socket
    server: socket.socket
    passing: dict[Way, threading.Event] = field(default_factory=lambda: {way: threading.Event() for way in Way})
    under_way: deque[tuple[int, str]] = field(default_factory=deque)

    def silence(self, *ways: Way) -> None:
        """Hold back all bytes, one way or both, also the end of the connection. The connection stays open."""
        for way in ways or Way:
            self.passing[way].clear()

    def heal(self) -> None:
        """Deliver the bytes that were held back, as after a network's fault."""
        for passing in self.passing.values():
            passing.set()

    def cut(self) -> None:
        """Cut the connection at once, in both directions. Bytes on their way are lost."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):  # The other end was faster.
                end.shutdown(socket.SHUT_RDWR)
        self.heal()


@dataclass(frozen=True, slots=True)
class Boundary:
    """The n-th round trip, counted over all connections from 1; `text` is the statement, empty for a new session."""

    n: int
    side: Side
    text: str
    link: Link


class Proxy:
    """Listens on a socket in `folder`, or on a port of `host` without one; `url` leads the same way through it.

    `at_boundary` is called by the thread that carries the bytes: that connection stands still while it runs, and if it
    cuts or silences the link, what it was called for goes no further.
    """

    def __init__(
        self,
        url: str,
        folder: Path | None = None,
        *,
        host: str = "127.0.0.1",
        at_boundary: Callable[[Boundary], None] = lambda _: None,
    ) -> None:
        parts = conninfo_to_dict(url)
        where, port = str(parts["host"]), int(parts.get("port") or 5432)
        self._server: str | tuple[str, int] = f"{where}/.s.PGSQL.{port}" if where.startswith("/") else (where, port)
        self._listener = socket.socket(socket.AF_INET if folder is None else socket.AF_UNIX)
        self._path = None if folder is None else f"{folder}/.s.PGSQL.{port}"
        self._listener.bind(self._path or (host, 0))
        self._listener.listen()
        if folder is None:
            port = self._listener.getsockname()[1]
        self.url = make_conninfo(url, host=str(folder or host), port=port)
        self.at_boundary = at_boundary
        self.latency_s = 0.0
        """So much later arrives whatever is passed on."""
        self.bytes_per_s = float("inf")
        self.boundaries = 0
        self._silent: set[Way] = set()
        self._links: list[Link] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        if self._path:
            os.unlink(self._path)
        self.cut()
        for thread in self._threads[1:]:
            thread.join()

    def silence(self, *ways: Way) -> None:
        """Silence all connections, also later ones."""
        with self._lock:
            self._silent |= set(ways or Way)
            for link in self._links:
                link.silence(*ways)

    def heal(self) -> None:
        with self._lock:
            self._silent.clear()
            for link in self._links:
                link.heal()

    def cut(self) -> None:
        """Cut all present connections. New ones can be made."""
        with self._lock:
            for link in self._links:
                link.cut()

    # How it works

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # It was shut down.
                return
            link = Link(client, socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET))
            link.heal()
            with self._lock:
                self._links.append(link)
                if self._silent:
                    link.silence(*self._silent)
            self._threads.append(threading.Thread(target=self._serve, args=(link,)))
            self._threads[-1].start()

    def _serve(self, link: Link) -> None:
        with link.client, link.server, contextlib.suppress(OSError):  # If there is no server, it hangs up.
            link.server.connect(self._server)
            answers = threading.Thread(target=self._carry_to_client, args=(link,))
            answers.start()
            self._carry_to_server(link)
            answers.join()
        with self._lock:
            self._links.remove(link)

    def _carry_to_server(self, link: Link) -> None:
        prepared: dict[bytes, str] = {}
        held, text = b"", ""
        for kind, data in _pieces(link.client, starts=True):
            held += data
            if data in ENCRYPTION:
                self._pass(link, Way.TO_CLIENT, b"N")
                held = b""
                continue
            if kind == b"P":
                name, words, _ = data[5:].split(b"\0", 2)
                text, prepared[name] = "prepare", words.decode()  # The statement itself comes with its parameters.
            elif kind == b"B":
                text = prepared[data[5:].split(b"\0", 2)[1]]
            elif kind == b"Q":
                text = data[5:-1].decode()
            if kind in (b"", b"Q", b"S"):
                with self._lock:
                    self.boundaries += 1
                    n = self.boundaries
                link.under_way.append((n, text))
                self.at_boundary(Boundary(n, Side.BEFORE, text, link))
                text = ""
            if kind not in PARTS_OF_A_STATEMENT:
                self._pass(link, Way.TO_SERVER, held)
                held = b""
        link.passing[Way.TO_SERVER].wait()
        link.cut()

    def _carry_to_client(self, link: Link) -> None:
        held = bytearray()
        for kind, data in _pieces(link.server):
            held += data
            if kind == b"Z" and link.under_way:
                n, text = link.under_way.popleft()
                self.at_boundary(Boundary(n, Side.AFTER, text, link))
            if kind in SERVER_WAITS or not link.under_way:  # Without a statement the server speaks unasked.
                self._pass(link, Way.TO_CLIENT, bytes(held))
                held.clear()
        self._pass(link, Way.TO_CLIENT, bytes(held))
        link.cut()

    def _pass(self, link: Link, way: Way, data: bytes) -> None:
        self._closing.wait(self.latency_s + len(data) / self.bytes_per_s)
        link.passing[way].wait()
        with contextlib.suppress(OSError):  # If it is cut, the next read says so.
            (link.server if way is Way.TO_SERVER else link.client).sendall(data)


def _pieces(source: socket.socket, *, starts: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """The messages of one end, each with its kind; a client's messages before its session starts are without a kind."""
    buffer = bytearray()
    with contextlib.suppress(OSError):  # As good as its end.
        while more := source.recv(65536):
            buffer += more
            while len(buffer) >= 5 and len(buffer) >= (size := (not starts) + _length(buffer, not starts)):
                data = bytes(buffer[:size])
                del buffer[:size]
                yield b"" if starts else data[:1], data
                starts = starts and data in ENCRYPTION


def _length(buffer: bytearray, at: int) -> int:
    return int.from_bytes(buffer[at : at + 4], "big")
