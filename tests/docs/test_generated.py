"""The generated pages of reference are those of this code, and leave nothing unexplained."""

import re

from tools.docs import api, schema
from tools.docs.generating import pages


def test_the_generated_pages_are_those_that_are_committed():
    old = [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert old == [], "run ./run docs --generate"


def test_every_public_name_method_and_option_is_explained():
    assert api.silent() == []


def test_every_object_that_a_method_returns_has_an_entry_of_its_own():
    page = api.as_markdown()
    returned = set(re.findall(r"-> ([A-Z]\w+)$", page, re.MULTILINE)) - {"Any", "NoReturn", "UUID"}
    for_a_block_or_as_a_decorator = {"BatchBlock", "Lifespan", "ScheduleDecorator"}
    assert returned - for_a_block_or_as_a_decorator <= set(re.findall(r"^### (\w+)$", page, re.MULTILINE))


def test_everything_public_in_the_schema_is_explained():
    assert schema.silent() == []


def test_the_page_of_the_schema_has_the_columns_that_the_database_has(queue):
    query = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 order by attnum"
    for table in schema.tables():
        columns = [name for name, _, _ in schema.columns_of_table(table)]
        assert sorted(columns) == sorted(queue.values(query, f"outlive.{table.name}")), table.name
    for view in schema.views():
        columns = schema.columns_of_view(view)
        same = queue.values(query, "outlive.job_states" if columns == ["*"] else f"outlive.{view.name}")
        assert queue.values(query, f"outlive.{view.name}") == (same if columns == ["*"] else columns), view.name


def test_the_page_of_the_schema_names_every_table_and_view(queue):
    query = "select relname from pg_class where relnamespace = 'outlive'::regnamespace and relkind = any(%s)"
    assert {one.name for one in schema.tables()} == set(queue.values(query, ["r"]))
    assert {one.name for one in schema.views()} == set(queue.values(query, ["v"]))
