"""A small HTTP server for probes and Prometheus, in the event loop whose health it shows.

A client can't slow the process down: at most a hundred connections per second are accepted, a connection lives for ten
seconds, and one more than `MOST` closes the oldest. A request may have eight kilobytes, of which only the first line is
read. There is no authentication: the address should be one that only the monitoring reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from outlive import validation
from outlive.errors import ConfigError

MOST = 32
PAUSE_S = 0.01
"""Between two connections that are accepted."""
READ_S = 2.0
LIVES_S = 10.0
MAX_REQUEST_BYTES = 8192
BACKLOG = 16


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], Awaitable[Answer]]]


class Endpoint:
    def __init__(self, listen: str, routes: Routes) -> None:
        """Listen at this address. ConfigError: it can't be used."""
        self._routes = routes
        self._open: dict[asyncio.Task[None], socket.socket] = {}
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
        """Accept a connection, and answer it while the next one is accepted."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        if len(self._open) >= MOST:
            next(iter(self._open)).cancel()
        task = asyncio.create_task(self._serve(connection))
        self._open[task] = connection
        task.add_done_callback(lambda task: self._open.pop(task).close())
        await asyncio.sleep(PAUSE_S)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # Also a TimeoutError. The client is gone, or too slow.
            async with asyncio.timeout(LIVES_S):
                async with asyncio.timeout(READ_S):
                    head = await self._read(connection)
                answer, head_only = await self._answer(head)
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

    async def _read(self, connection: socket.socket) -> bytes:
        """The request up to its empty line; less if it is too large, or if the client has stopped sending."""
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MAX_REQUEST_BYTES:
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

    async def close(self) -> None:
        self._socket.close()
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(list(self._open))


def _refused(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())
