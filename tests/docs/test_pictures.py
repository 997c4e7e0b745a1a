"""The pictures in the documents are few and small, and the browser takes them from real jobs."""

import shutil
from pathlib import Path

import pytest

from tools.docs import pictures
from tools.docs.generating import ROOT

PICTURES = sorted(pictures.IMAGES.glob("*"))


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_and_shown(path: Path) -> None:
    assert path.suffix == ".png"
    assert path.stat().st_size <= pictures.MOST_BYTES
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"images/{path.name})" in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium: apt install chromium")
def test_the_pictures_can_be_taken_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pictures.main(tmp_path) == 0
    capsys.readouterr()  # The report of long tests would have the last line of it.
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in PICTURES]
