"""Notifications for systemd: this process is ready, alive or stopping, and what it does.

The protocol is that of sd_notify(3): lines in a datagram to the socket in NOTIFY_SOCKET. Without that variable, nothing
is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from outlive.worker.reporting.vitals import Vitals

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Jobs don't have these in their environment: they could send notifications in the name of their worker."""
EVERY_S = 10.0


class Systemd:
    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        self._socket = os.environ.get("NOTIFY_SOCKET")
        mine = os.environ.get("WATCHDOG_PID") in (None, str(os.getpid()))
        within_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 if mine else 0.0
        self._every_s = min(EVERY_S, within_s / 2) if within_s else EVERY_S

    def ready(self) -> None:
        self._send("READY=1", f"STATUS={self._vitals.status()}")

    def stopping(self) -> None:
        self._send("STOPPING=1", f"STATUS={self._vitals.status()}")

    async def run_once(self) -> None:
        """Notify that this process is alive, twice as often as systemd requires. Without that, systemd kills it."""
        trouble = self._vitals.dead()
        self._send(*(["WATCHDOG=1"] if trouble is None else []), f"STATUS={trouble or self._vitals.status()}")
        await asyncio.sleep(self._every_s)

    def _send(self, *lines: str) -> None:
        if not self._socket:
            return
        address = "\0" + self._socket[1:] if self._socket.startswith("@") else self._socket
        with (
            contextlib.suppress(OSError),  # Its queue is full, or it restarts: the next line may arrive.
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
