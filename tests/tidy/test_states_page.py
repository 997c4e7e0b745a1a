"""The page of states that people read is the one that the code goes by."""

from pathlib import Path

from outlive import states

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def test_the_page_of_states_is_made_from_the_code() -> None:
    assert PAGE.read_text() == states.as_markdown()
