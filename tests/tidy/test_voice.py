"""The voice of outlive: log lines, errors, help, docstrings, pages and the names of tests name their subject."""

import re
from pathlib import Path

from tests.tidy.reading import LAB, PAGES, SOURCE, TESTS, TOOLS, functions, modules, none, read, shown, strings

RIDDLES = re.compile(r"\b(somebody|nobody|anybody|whoever|anew|is none|are none|has not|have not)\b", re.IGNORECASE)
"""Words that hide the subject of a sentence: name the worker, the reaper or the caller instead."""

ACCOUNT = "nobody"
"""In embedded/, and in backticks on a page, this is an account, which every Unix has."""


def riddles(path: Path, text: str) -> bool:
    return bool(RIDDLES.search(text.replace(ACCOUNT, "") if path.parent.name == "embedded" else text))


def test_no_text_hides_its_subject():
    paths = [*modules(SOURCE, LAB, TOOLS, *TESTS), *sorted(SOURCE.rglob("*.sql"))]
    said = ((path, *one) for path in paths if path != Path(__file__) for one in strings(path))
    none(f"{shown(path, line)}: {text!r:.200}" for path, line, text in said if riddles(path, text))


def test_no_name_of_a_test_hides_its_subject():
    named = ((path, one) for path in modules(*TESTS) for one in functions(path))
    none(f"{shown(path, one.lineno)}: {one.name}" for path, one in named if RIDDLES.search(one.name.replace("_", " ")))


def test_no_page_hides_its_subject():
    pages = (path for path in PAGES if path.parent.name != "reports")
    plain = {path: " ".join(read(path).replace(f"`{ACCOUNT}`", "").split()) for path in pages}
    none(f"{shown(path)}: {RIDDLES.findall(text)}" for path, text in plain.items() if RIDDLES.search(text))
