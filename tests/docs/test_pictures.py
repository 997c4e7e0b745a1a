"""The browser takes the pictures of the documents from real jobs."""

import shutil

import pytest

from tools.docs import pictures


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium: apt install chromium")
def test_the_pictures_can_be_taken_again(tmp_path, capsys):
    assert pictures.main(tmp_path) == 0
    capsys.readouterr()  # The report of long tests would have the last line of it.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in pictures.IMAGES.iterdir())
