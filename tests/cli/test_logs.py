"""Log lines: text for people, JSON for machines, no passwords, no forged lines."""

import json
import logging
from datetime import datetime

import pytest

from outlive import logs

log = logging.getLogger("outlive.test")


def test_text_is_one_line_with_a_time_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text")
    log.info("Worker %s started", "a")
    log.debug("not shown")
    time, _, rest = capsys.readouterr().err.partition(" ")
    assert rest == "INFO    outlive.test: Worker a started\n"
    assert datetime.fromisoformat(time).utcoffset() is not None
    assert time.endswith("Z")


def test_json_lines_carry_what_the_record_carries(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    log.warning("Job %s failed", 1, extra={"job_id": 1, "what": {1, 2}.__class__})
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"], line["job_id"]) == (
        "warning",
        "outlive.test",
        "Job 1 failed",
        1,
    )


def test_an_exception_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        logs.configure(form)
        try:
            raise ValueError("postgresql://me:secret@host")
        except ValueError:
            log.exception("it failed")
        said = capsys.readouterr().err
        assert "Traceback" in said
        assert "secret" not in said


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "said",
    [
        "postgresql://me:secret@host/db",
        "postgresql://me:sec/ret@secret@host/db",
        "host=h password=secret user=me",
        "host=h password = 'sec ret\\' secret' user=me",
        "postgresql://host/db?user=me&password=secret&port=1",
    ],
)
def test_passwords_never_get_into_a_line(form: logs.Format, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(form)
    log.error("can't connect to %s", said)
    line = capsys.readouterr().err
    assert "secret" not in line
    assert "ret" not in line.replace("user", "")
    assert "***" in line


def test_what_a_job_said_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        logs.configure(form)
        log.error("failed: %s", "x\n2030-01-01 ERROR Dead worker detected\x1b[2J")
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert "\x1b" not in line


def test_configuring_again_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logs.configure("text")
    log.info("once")
    assert capsys.readouterr().err.count("once") == 1
