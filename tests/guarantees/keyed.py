"""An app whose jobs say how many of their key run, which workers import."""

import fcntl
import os
import time
from pathlib import Path

import outlive

app = outlive.App()


@app.task(max_losses=None)
def enter(folder: str, key: str, most: int, hold_s: float) -> int:
    """Take one of the key's places, each of which is a locked file; fails if all are taken."""
    for place in range(most):
        file = os.open(Path(folder) / f"{key}.{place}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        time.sleep(hold_s)
        os.close(file)
        return place
    raise outlive.Fail(f"{most} jobs of {key} run already")
