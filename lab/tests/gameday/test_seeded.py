"""Bugs in a copy of outlive are caught by a played game."""

import shutil
from pathlib import Path

import pytest

import outlive
from outlive_lab.gameday import seeded
from outlive_lab.gameday.seeded import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_put_into_the_code_of_today(bug: Bug, tmp_path: Path) -> None:
    for file in {file for file, _, _ in bug.patches}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(outlive.__file__).parent / file, tmp_path / file)
    bug.apply(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(500)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_played_game_catches_a_worker_that(bug: Bug, tmp_path: Path) -> None:
    rules = seeded.found(seeded.play(bug, tmp_path))
    print(", ".join(f"{rule}: {count}" for rule, count in rules.items()))
    assert bug.rule in rules


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_copy_without_a_bug_breaks_no_rule(tmp_path: Path) -> None:
    assert seeded.found(seeded.play(None, tmp_path)) == {}
