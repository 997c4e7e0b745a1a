"""Statements: each is explained, used, and static."""

import ast
import re
from pathlib import Path

import pytest

from outlive import migrate, sql
from tests.tidy.reading import SOURCE, shown, syntax

MAX_LINE = 115
SCHEMA = sorted((SOURCE / "sql" / "schema").rglob("*.sql"))
FILES = sorted(path.name for path in (SOURCE / "sql" / "statements").glob("*.sql"))
STATEMENTS = [(file, name, text) for file in FILES for name, text in sql.load(f"statements/{file}").items()]


def used_in(file: str) -> set[object]:
    """The constants of the store's module that belongs to a file of statements."""
    tree = syntax(SOURCE / "store" / file.replace(".sql", ".py"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize(("file", "name", "text"), STATEMENTS, ids=[name for _, name, _ in STATEMENTS])
def test_a_statement_is_explained_and_used(file: str, name: str, text: str) -> None:
    assert re.match(r"\n-- \S", text), f"{file}: {name} has no comment that says what it does"
    assert name in used_in(file), f"{file}: its module of the store does not use {name}"


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_statements_says_what_is_in_it(file: str) -> None:
    assert sql.read(f"statements/{file}").startswith("-- ")


@pytest.mark.parametrize("path", SCHEMA, ids=shown)
def test_a_file_of_the_schema_says_what_is_in_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("-- ")


@pytest.mark.parametrize("path", sorted((SOURCE / "sql").rglob("*.sql")), ids=shown)
def test_a_line_of_sql_fits_beside_another(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert len(line) <= MAX_LINE, f"{shown(path, number)} has {len(line)} characters"


@pytest.mark.parametrize("path", [path for path in SCHEMA if path.parent.name == "functions"], ids=shown)
def test_a_migration_installs_every_file_of_functions(path: Path) -> None:
    assert path.read_text(encoding="utf-8") in migrate.script()
