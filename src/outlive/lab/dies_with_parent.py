"""A worker that dies with whoever started it, even if that one is killed.

`python -m outlive.lab.dies_with_parent PARENT worker …` is `outlive worker …` otherwise.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # It died before we asked.
        sys.exit(1)
    from outlive.cli import main

    main()


if __name__ == "__main__":
    main()
