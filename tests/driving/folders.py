"""A directory that other accounts can enter, unlike pytest's own: as root, a server runs as another user."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_folder() -> Iterator[Path]:
    """It is removed at the end. Its path is short, as the socket of a server needs it."""
    folder = Path(tempfile.mkdtemp(prefix="outlive-test-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
