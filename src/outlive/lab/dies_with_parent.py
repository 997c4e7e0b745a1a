"""Runs `outlive …` as a process that the kernel kills when its parent dies.

`python -m outlive.lab.dies_with_parent PARENT worker …`, where PARENT is a pid.
"""

import os
import sys

from outlive import kernel


def main() -> None:
    parent = int(sys.argv.pop(1))
    kernel.die_with_parent()
    if os.getppid() != parent:  # The parent died before that.
        sys.exit(1)
    from outlive.cli import main

    main()


if __name__ == "__main__":
    main()
