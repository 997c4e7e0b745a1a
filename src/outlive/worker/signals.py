"""The signals that a supervisor obeys, each with the process that sent it: a job must not stop or stall its own worker.

Python's handlers do not learn the sender. So the signals are blocked, and taken when a descriptor for which the event
loop waits (signalfd) says that one has come. They stay blocked for the rest of this process' life. Processes that it
starts must unblock them, see `linux.unblock_signals`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable

from outlive.worker import log

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT)
"""The sender of SIGCONT most likely also sent SIGSTOP, which can't be caught."""
_SIGSET_BYTES = 128
_FROM_KILL, _FROM_TGKILL, _FROM_KERNEL = 0, -6, 0x80
"""Codes that no process can forge: the sender is the one that the kernel names, or the kernel, as for Ctrl-C."""


class Signals:
    def __init__(self) -> None:
        """Block the signals, in this thread and in those that it starts from now on."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        libc, wanted = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(_SIGSET_BYTES)
        for number in HANDLED:
            libc.sigaddset(wanted, ctypes.c_int(number))
        self._descriptor = libc.signalfd(-1, wanted, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def listen(self, obey: Callable[[signal.Signals, int], None]) -> None:
        """Have the running event loop call this with each signal and its sender; 0 is the kernel or another namespace.

        A thread from before the signals were blocked may receive them too. Its sender is not known then.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, self._read, obey)
        for number in HANDLED:
            if number is not signal.SIGCONT:
                loop.add_signal_handler(number, obey, number, 0)

    def _read(self, obey: Callable[[signal.Signals, int], None]) -> None:
        while (one := signal.sigtimedwait(HANDLED, 0)) is not None:
            sent = signal.Signals(one.si_signo)
            if one.si_code in (_FROM_KILL, _FROM_TGKILL, _FROM_KERNEL):
                obey(sent, one.si_pid)
            else:
                log.warning("%s is ignored: it was not sent with kill, so its sender can't be known", sent.name)
