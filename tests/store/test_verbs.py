"""Verbs of the store that are declared by their signatures."""

import inspect

import pytest

from outlive import sql, store
from outlive.statement import Statement
from outlive.store.statements import decoded_by, nothing

DECLARED = {name: verb for name, verb in vars(store).items() if hasattr(verb, "__wrapped__")}


def test_a_verb_has_the_parameters_of_its_statement():
    texts = sql.texts()
    taken = {name: {*inspect.signature(verb).parameters} for name, verb in DECLARED.items()}
    assert taken == {name: {*sql.compiled(texts[name]).parameters} for name in DECLARED}
    assert len(taken) > 100


def test_a_verb_keeps_its_name_and_its_words():
    assert store.write_audit.__name__ == "write_audit"
    assert store.write_audit.__doc__ == "Run it in the transaction of the action."


def test_a_verb_that_differs_from_its_statement_says_in_what():
    @decoded_by(nothing)
    def tokens_of(since: int) -> Statement[None]: ...  # type: ignore[empty-body]

    with pytest.raises(TypeError, match=r"the verb tokens_of and its statement differ .*: since, worker$"):
        tokens_of(1)
