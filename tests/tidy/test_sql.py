"""Statements: each is explained, used, and static."""

import ast
import re

import pytest

from outlive import sql
from tests.tidy.reading import SOURCE, syntax

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


@pytest.mark.parametrize("file", sorted(path.name for path in (SOURCE / "sql" / "schema").glob("*.sql")))
def test_a_file_of_the_schema_says_what_is_in_it(file: str) -> None:
    assert sql.read(f"schema/{file}").startswith("-- ")
