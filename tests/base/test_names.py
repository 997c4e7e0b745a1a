"""The public names of the package, which are written twice: for type checkers, and to be imported when needed."""

import ast
import inspect

import outlive


def test_type_checkers_see_the_names_that_are_there():
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(outlive))) if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, one.name) for node in imports for one in node.names if one.asname == one.name}
    assert seen == {(f"outlive.{module}", name) for module, names in outlive._NAMES.items() for name in names.split()}
    assert {name: getattr(outlive, name).__name__ for name in outlive.__all__} == {
        name: name for name in outlive.__all__
    }
