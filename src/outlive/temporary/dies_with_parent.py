"""Runs a program that the kernel kills when its parent dies: `dies_with_parent.py PARENT PROGRAM …`, PARENT is a pid.

It is executed by path with `python -I -S`, so that it starts fast, and imports nothing but the standard library.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # The setting outlives the exec.


def main() -> None:
    parent, *words = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # The parent died before that.
        sys.exit(1)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
