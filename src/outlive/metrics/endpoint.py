"""A small HTTP server for probes and Prometheus, in the event loop whose health it shows.

A client can't slow the process down: at most a hundred requests per second are answered, in the order in which they
have arrived, and a connection lives for ten seconds. While `MOST` whole requests wait for their turn, no connection is
accepted: the kernel keeps the next ones. Of the clients that send or read slowly, one more than `MOST` closes the
oldest. Connections that send nothing are cheap, so many of them are accepted in a second: they hold up no probe behind
them. One more than `MOST_SILENT` closes the oldest. A request may have eight kilobytes, of which only the first line is
read. There is no authentication: the address should be one that only the monitoring reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

from outlive import validation
from outlive.errors import ConfigError

MOST = 32
MOST_SILENT = 128
PAUSE_S = 0.01
"""Between two answers, and between two times that connections are accepted."""
AT_ONCE = 32
"""How many connections are accepted each time."""
READ_S = 2.0
LIVES_S = 10.0
MAX_REQUEST_BYTES = 8192
BACKLOG = 128


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], Awaitable[Answer]]]


class Endpoint:
    def __init__(self, listen: str, routes: Routes) -> None:
        """Listen at this address. ConfigError: it can't be used."""
        self._routes = routes
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._open: dict[asyncio.Task[None], socket.socket] = {}
        self._slow: dict[asyncio.Task[None], None] = {}
        """Those of the open ones that wait for their client or for their page, not for their turn."""
        self._turn = asyncio.Lock()
        host, port = validation.host_and_port(listen)
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._socket = socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            reason = f"this process can't listen there: {error.strerror}"
            raise ConfigError(f"metrics_listen is {listen}, and {reason}; choose another address") from None
        self._socket.setblocking(False)

    @property
    def address(self) -> str:
        host, port, *_ = self._socket.getsockname()
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run_once(self) -> None:
        """Accept the connections that wait, and answer them while the next ones are accepted."""
        if len(self._open) - len(self._slow) >= MOST:
            await asyncio.sleep(PAUSE_S)
            return
        connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        self._listen_to(connection)
        with contextlib.suppress(OSError):  # Mostly BlockingIOError: no other waits.
            for _ in range(AT_ONCE - 1):
                self._listen_to(self._socket.accept()[0])
        await asyncio.sleep(PAUSE_S)

    def _listen_to(self, connection: socket.socket) -> None:
        """Wait for the first byte of a connection. This costs little, because a task is made only then."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        if len(self._silent) >= MOST_SILENT:
            self._leave(next(iter(self._silent))).close()
        self._silent[connection] = loop.call_later(READ_S, lambda: self._leave(connection).close())
        loop.add_reader(connection, self._hear, connection)

    def _leave(self, connection: socket.socket) -> socket.socket:
        """Wait no more for this connection."""
        self._silent.pop(connection).cancel()
        asyncio.get_running_loop().remove_reader(connection)
        return connection

    def _hear(self, connection: socket.socket) -> None:
        self._leave(connection)
        try:
            head = connection.recv(MAX_REQUEST_BYTES)
        except OSError:
            head = b""
        if not head:  # The client is gone.
            connection.close()
            return
        task = asyncio.create_task(self._serve(connection, head))
        self._open[task] = connection
        task.add_done_callback(lambda task: self._open.pop(task).close())

    async def _serve(self, connection: socket.socket, head: bytes) -> None:
        with contextlib.suppress(OSError):  # Also a TimeoutError. The client is gone, or too slow.
            async with asyncio.timeout(LIVES_S):
                if not _is_whole(head):
                    with self._may_be_closed():
                        async with asyncio.timeout(READ_S):
                            head = await self._read(connection, head)
                async with self._turn:
                    await asyncio.sleep(PAUSE_S)
                with self._may_be_closed():
                    answer, head_only = await self._answer(head)
                    await self._send(connection, answer, head_only=head_only)

    @contextlib.contextmanager
    def _may_be_closed(self) -> Iterator[None]:
        """Meanwhile, one task too many cancels this one, if it is the oldest."""
        if len(self._slow) >= MOST:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            oldest.cancel()
        task = asyncio.current_task()
        assert task
        self._slow[task] = None
        try:
            yield
        finally:
            self._slow.pop(task, None)

    async def _read(self, connection: socket.socket, head: bytes) -> bytes:
        """The request up to its empty line; less if it is too large, or if the client has stopped sending."""
        while not _is_whole(head):
            more = await asyncio.get_running_loop().sock_recv(connection, MAX_REQUEST_BYTES)
            if not more:
                break
            head += more
        return head

    async def _answer(self, head: bytes) -> tuple[Answer, bool]:
        """The answer, and whether only its head is asked for."""
        if b"\r\n\r\n" not in head:
            large = len(head) >= MAX_REQUEST_BYTES
            return _refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if large else HTTPStatus.BAD_REQUEST), False
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _refused(HTTPStatus.BAD_REQUEST), False
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED), False
        page = self._routes.get(target.partition(b"?")[0].decode("latin-1"))
        answer = _refused(HTTPStatus.NOT_FOUND) if page is None else await page()
        return answer, method == b"HEAD"

    async def _send(self, connection: socket.socket, answer: Answer, *, head_only: bool) -> None:
        lines = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(connection, "".join(f"{line}\r\n" for line in (*lines, "")).encode())
        if not head_only:
            await loop.sock_sendall(connection, answer.body)

    async def close(self) -> None:
        self._socket.close()
        for connection in list(self._silent):
            self._leave(connection).close()
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(list(self._open))


def _is_whole(head: bytes) -> bool:
    """Whether nothing more is read of this request."""
    return b"\r\n\r\n" in head or len(head) >= MAX_REQUEST_BYTES


def _refused(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())
