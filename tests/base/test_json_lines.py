"""Lines of JSON that are log records."""

import msgspec
import pytest

from outlive import json_lines

STACK = "Traceback (most recent call last):\nValueError: no price"


@pytest.mark.parametrize(
    ("fields", "exception"),
    [
        ({"exception": STACK}, STACK),
        ({"exc_info": STACK}, STACK),
        ({"exc_info": STACK.split("\n")}, STACK),
        ({"exception": [{"exc_type": "ValueError"}]}, '[\n  {\n    "exc_type": "ValueError"\n  }\n]'),
        ({"exc_info": True}, ""),
        ({"exc_info": ["<class 'ValueError'>", "ValueError('no price')"]}, ""),
        ({"exception": None}, ""),
    ],
)
def test_a_traceback_is_what_the_line_has_rendered(fields, exception):
    line = json_lines.read(msgspec.json.encode({"event": "failed", **fields}).decode())
    assert line is not None
    assert (line.exception, line.fields) == (exception, {} if exception else fields)


@pytest.mark.parametrize("level", ["warning", "WARNING", "Warn"])
def test_a_level_has_one_name_in_the_log(level):
    line = msgspec.json.encode({"msg": "no price", "severity": level, "level": None})
    assert json_lines.level_of(line) == "WARNING"
    assert json_lines.read(line.decode()) == json_lines.JsonLine("WARNING", "no price", {"level": None}, "")
