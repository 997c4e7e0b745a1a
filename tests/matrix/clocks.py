"""Wrong clocks for a worker or a whole Postgres, with libfaketime."""

from pathlib import Path

import pytest

from tests.driving.workers import ROOT


class Clock:
    """A wall clock that libfaketime shows to processes. A file says how far it is off."""

    def __init__(self, path: Path) -> None:
        library = next(Path("/usr").glob("lib/*/faketime/libfaketime.so.1"), None)
        if library is None:
            pytest.skip("libfaketime is not installed: apt install faketime")
        self._path = path
        self.environ = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.jump("+0")

    def shown_to_python(self) -> list[str]:
        """The command that starts a worker with this clock, and with a time.sleep that libfaketime does not break."""
        folder = self._path.with_suffix(".site")
        folder.mkdir()
        way = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
        (folder / "sitecustomize.py").write_text(way)
        environ = self.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{folder}"}
        return ["env", *(f"{name}={value}" for name, value in environ.items())]

    def jump(self, offset: str) -> None:
        new = self._path.with_suffix(".new")  # Whole or not at all: it is read all the time.
        new.write_text(offset)
        new.chmod(0o644)
        new.rename(self._path)
