"""`outlive dashboard`: where it listens, who may look, and the link that it prints."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from outlive import validation
from outlive.config import Config
from outlive.dashboard import build
from outlive.dashboard.access import new_token
from outlive.dashboard.connections import Connection
from outlive.dashboard.shield import LOOPBACK
from outlive.dashboard.site import Site
from outlive.errors import ConfigError

STOP_S = 1
WATCH_S = 0.5


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(config: Config, say: Callable[[str], None], *, kept: str | None = None, parent: int | None = None) -> None:
    """Serve the dashboard until SIGTERM or Ctrl-C, or until its `parent` has died, if that is given.

    `say` prints a line for the person who started it. Without a token in the settings, `kept` is the token, or a new
    one.
    """
    host, port = validation.host_and_port(config.dashboard_listen)
    assert port is not None, "the settings were checked"
    token = config.dashboard_token
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"the dashboard would be open to everyone who reaches {host}: set dashboard_token to a secret of at least "
            "16 characters, or listen on 127.0.0.1"
        )
    made = token or kept or new_token()
    dashboard = build(
        config,
        token=made,
        viewer_token=config.dashboard_viewer_token,
        hosts={*LOOPBACK, host} if is_loopback(host) else None,
    )

    def link(port: int) -> str:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}{config.dashboard_root_path}/"
        return f"{address}?token={made}" if token is None else address

    # Beside a worker, this would be written to its log.
    named = made == kept and parent is None
    if_taken = f"if yours runs there, its link is {link(port)} ; otherwise " if named else ""
    with _bound(host, port, if_taken) as listening:
        say(f"dashboard: {link(listening.getsockname()[1])}")
        asyncio.run(_run(dashboard, listening, parent))


def _bound(host: str, port: int, if_taken: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends the head of an answer and its body without a pause only if the socket says that it is TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # The link that is printed next works at once.
    except OSError as error:
        listening.close()
        hint = if_taken if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(
            f"the dashboard can't listen on {host}:{port} ({error.strerror or error}): {hint}choose another with "
            "OUTLIVE_DASHBOARD_LISTEN, or --listen of `outlive dashboard`"
        ) from None
    return listening


class _Server(uvicorn.Server):
    """A signal to stop is the usual end of a dashboard. uvicorn would raise it once more, and die of it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield


async def _run(dashboard: Site, listening: socket.socket, parent: int | None) -> None:
    """No access log: a link may have a token in it."""
    options = uvicorn.Config(
        dashboard,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=500,
        http=Connection,
        ws="none",
        proxy_headers=False,  # Site reads them, and only from the proxy that the settings name.
    )
    server = _Server(options)
    watching = asyncio.create_task(_watch(server, parent)) if parent is not None else None
    await server.serve(sockets=[listening])
    if watching is not None:
        watching.cancel()


async def _watch(server: uvicorn.Server, parent: int) -> None:
    """Stop the server when the process that has started it is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110  # The kernel tells no event loop of this.
        await asyncio.sleep(WATCH_S)
    server.should_exit = True
