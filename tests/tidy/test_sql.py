"""Statements and the schema: each file and statement is explained, used, and static."""

import re

from outlive import migrate, sql
from tests.tidy.reading import SOURCE, functions, none, read, shown, strings

MAX_LINE = 115
FILES = sorted((SOURCE / "sql").rglob("*.sql"))
SCHEMA = [path for path in FILES if SOURCE / "sql" / "schema" in path.parents]
STATEMENTS = [path for path in FILES if path.parent.name == "statements"]


def test_a_statement_is_explained_and_its_module_of_the_store_uses_it():
    for path in STATEMENTS:
        module = SOURCE / "store" / f"{path.stem}.py"
        used = {text for _, text in strings(module)} | {one.name for one in functions(module)}
        named = sql.load(f"statements/{path.name}")
        explained = {name for name, text in named.items() if re.match(r"\n-- \S|select \* from outlive\.\w+\(", text)}
        none(f"{shown(path)}: {name} has no comment" for name in named.keys() - explained)
        none(f"{shown(path)}: {name} is not used" for name in named if name not in used)


def test_a_file_of_the_schema_or_of_statements_says_what_is_in_it():
    none(shown(path) for path in [*SCHEMA, *STATEMENTS] if not read(path).startswith("-- "))


def test_a_line_of_sql_fits_beside_another():
    none(shown(path, n) for path in FILES for n, line in strings(path) if len(line) > MAX_LINE)


def test_a_migration_installs_every_file_of_functions():
    script = migrate.script()
    none(shown(path) for path in SCHEMA if path.parent.name == "functions" and read(path) not in script)
