"""A small HTTP server for probes and Prometheus, in the event loop whose health it shows.

A client can't slow the process down: at most a hundred requests per second are answered, in the order in which they
have arrived, and a connection lives for ten seconds. Of the clients that send or read slowly, one more than `MOST`
closes the oldest. While `MOST` whole requests wait for their turn, no connection is accepted: the kernel keeps the next
ones. There is no authentication: the address should be one that only the monitoring reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

from outlive import validation
from outlive.errors import ConfigError

MOST = 64
PAUSE_S = 0.01
"""Between two answers, and between two times that connections are accepted."""
AT_ONCE = 24
"""How many connections are accepted each time: a probe waits little behind clients that send nothing."""
READ_S = 2.0
LIVES_S = 10.0
MAX_REQUEST_BYTES = 8000
BACKLOG = 128


class Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Routes = Mapping[str, Callable[[], Awaitable[Response]]]


class Endpoint:
    def __init__(self, listen: str, routes: Routes) -> None:
        """Listen at this address. ConfigError: it can't be used."""
        self._routes = routes
        self._open: set[asyncio.Task[None]] = set()
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
        """Accept connections that wait, and answer them while the next ones are accepted."""
        if len(self._open) - len(self._slow) < MOST:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            self._accept(connection)
            with contextlib.suppress(OSError):  # Mostly BlockingIOError: no other waits.
                for _ in range(AT_ONCE - 1):
                    self._accept(self._socket.accept()[0])
        await asyncio.sleep(PAUSE_S)

    def _accept(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task = asyncio.create_task(self._serve(connection))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_REQUEST_BYTES)
        with contextlib.suppress(OSError), contextlib.closing(writer):  # Also a TimeoutError: it is gone, or too slow.
            async with asyncio.timeout(LIVES_S):
                with self._may_be_closed():
                    async with asyncio.timeout(READ_S):
                        request = await _read(reader)
                async with self._turn:
                    await asyncio.sleep(PAUSE_S)
                with self._may_be_closed():
                    await self._answer(request, writer)

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

    async def _answer(self, request: bytes | HTTPStatus, writer: StreamWriter) -> None:
        words = request.split(b"\r\n", 1)[0].split(b" ") if isinstance(request, bytes) else []
        if isinstance(request, HTTPStatus):
            answer = _refused(request)
        elif len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            answer = _refused(HTTPStatus.BAD_REQUEST)
        elif words[0] not in (b"GET", b"HEAD"):
            answer = _refused(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            page = self._routes.get(words[1].partition(b"?")[0].decode("latin-1"))
            answer = _refused(HTTPStatus.NOT_FOUND) if page is None else await page()
        lines = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        )
        writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        if words[:1] != [b"HEAD"]:
            writer.write(answer.body)
        writer.close()
        await writer.wait_closed()

    async def close(self) -> None:
        self._socket.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)


async def _read(reader: StreamReader) -> bytes | HTTPStatus:
    """The request, or why it is refused. Only its first line matters."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    except asyncio.IncompleteReadError:
        return HTTPStatus.BAD_REQUEST


def _refused(status: HTTPStatus) -> Response:
    return Response(status, f"{status.phrase}\n".encode())
