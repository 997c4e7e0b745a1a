"""Log lines: text for people, JSON for machines, no passwords, no forged lines, and no waiting for a reader."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from datetime import datetime
from functools import partial

import pytest

from outlive import logs

log = logging.getLogger("outlive.test")


def test_text_is_one_line_with_a_time_in_utc(capsys):
    logs.configure("text")
    log.info("Worker %s started", "a")
    log.debug("not shown")
    time, _, rest = capsys.readouterr().err.partition(" ")
    assert rest == "INFO    outlive.test: Worker a started\n"
    assert datetime.fromisoformat(time).utcoffset() is not None
    assert time.endswith("Z")


def test_json_lines_carry_what_the_record_carries(capsys):
    logs.configure("json")
    log.warning("Job %s failed", 1, extra={"job_id": 1, "what": {1, 2}.__class__})
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"], line["message"], line["job_id"]) == (
        "warning",
        "outlive.test",
        "Job 1 failed",
        1,
    )


def test_an_exception_is_logged_with_its_traceback(capsys):
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
        "host=h password=sec\\ ret\\'secret user=me",
        "postgresql://host/db?user=me&password=secret&port=1",
        "postgresql://host/db?sslpassword=ab'secret&port=1",
        "host=h password=ab&secret user=me",
        "host=h password=ab'secret user=me",
        "host=h password='secret",
        "host=h oauth_client_secret=ret user=me",
    ],
)
def test_passwords_never_get_into_a_line(form, said, capsys):
    logs.configure(form)
    log.error("can't connect to %s", said)
    line = capsys.readouterr().err
    assert "secret" not in line.replace("_secret=", "")
    assert "ret" not in line.replace("user", "").replace("_secret=", "")
    assert "***" in line


@pytest.mark.parametrize(
    "unit", ["a://:", "a://", "a:// ", "a://b:c@", "password='", "password= ' ", "password\\'", "?password", "=\\ "]
)
def test_no_line_of_a_job_takes_long_to_clean(unit):
    """The supervisor cleans the lines: a pattern that tries every pair of places would take it many seconds."""
    began = time.thread_time()
    for line in (unit * 12_500, "@password=" + unit * 12_500):
        logs.redacted(line)
    assert time.thread_time() - began < 1


def test_the_text_of_a_job_cannot_forge_a_log_line(capsys):
    for form in ("text", "json"):
        logs.configure(form)
        log.error("failed: %s", "x\n2030-01-01 ERROR Dead worker detected\x1b[2J")
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert "\x1b" not in line


def test_configuring_again_does_not_double_the_lines(capsys):
    logs.configure("json")
    logs.configure("text")
    log.info("once")
    assert capsys.readouterr().err.count("once") == 1


HEAD = """
import logging, os, sys
from outlive import logs
logs.configure()
log = logging.getLogger('outlive.test')
"""


def logging_process(program: str, stderr: int, *shell: str) -> "subprocess.Popen[str]":
    """A process that logs, and reports to the test on stdout."""
    words = [*shell, sys.executable, "-c", HEAD + program]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)


ONE_BY_ONE = """
for number in range(100_000):
    log.info('line %d', number)
"""
TOGETHER = """
from functools import partial
def made(first):
    return [f'0Z INFO    outlive.test: line {number}' for number in range(first, first + 50)]
for number in range(0, 100_000, 50):
    logs.later(partial(made, number), lines=50)
"""


@pytest.mark.parametrize("program", [ONE_BY_ONE, TOGETHER], ids=["one by one", "together"])
def test_lines_for_an_unread_stderr_are_dropped_and_counted(program):
    read, write = os.pipe()
    process = logging_process(
        f"""
{program}
print('logged', flush=True)
input()
log.info('line -1')
logs.flush(60)
""",
        write,
    )
    os.close(write)
    assert process.stdin
    assert process.stdout
    assert process.stdout.readline() == "logged\n"
    with process, open(read, encoding="utf-8") as stderr:
        process.stdin.write("\n")
        process.stdin.flush()
        lines = [line.partition("Z ")[2].strip() for line in stderr]
    said = [line for line in lines if line.startswith("WARNING outlive.logs: ")]  # Once or, on a busy machine, twice.
    at = lines.index(said[0])
    dropped = sum(int(line.removeprefix("WARNING outlive.logs: ").split()[0].replace(",", "")) for line in said)
    assert len(lines) - len(said) + dropped == 100_001
    assert dropped > 10_000
    assert lines[:at] == [f"INFO    outlive.test: line {number}" for number in range(at)]


def test_lines_are_written_whole_and_no_more_at_once_than_a_pipe_takes_in_one_piece():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # Each write is a packet.
    with ours, theirs:
        process = logging_process(
            """
logs.later(lambda: ['é' * 30 + str(n) for n in range(500)])
logs.later(lambda: ['x' * 5000])
log.info('last')
""",
            theirs.fileno(),
        )
        theirs.close()
        packets = list(iter(partial(ours.recv, 65536), b""))
        process.communicate(timeout=20)
    assert all(packet.endswith(b"\n") for packet in packets)
    [*many, long, last] = packets
    assert max(map(len, many)) <= 4096 < len(long)
    assert len(many) == -(-sum(map(len, many)) // 4000)
    said = b"".join(many).decode().splitlines()
    assert said == ["é" * 30 + str(n) for n in range(500)]
    assert last.endswith(b" last\n")


def test_a_process_whose_stderr_is_not_read_ends_all_the_same():
    read, write = os.pipe()
    started = time.monotonic()
    process = logging_process("for _ in range(2_000): log.info('x' * 100)", write)
    os.close(write)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert time.monotonic() - started < 10
    os.close(read)


def test_a_stderr_that_does_not_block_gets_every_line_whole():
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = logging_process("for number in range(20_000): log.info('line %d', number)\nassert logs.flush(20)", write)
    os.close(write)
    with process, open(read, encoding="utf-8") as stderr:
        numbers = [int(line.rpartition(" ")[2]) for line in stderr]
    assert numbers == list(range(20_000))
    assert process.returncode == 0


@pytest.mark.parametrize("shell", [(), ("sh", "-c", 'exec "$@" 2>&-', "sh")], ids=["broken pipe", "closed"])
def test_a_stderr_without_a_reader_or_a_descriptor_stops_nothing(shell):
    read, write = os.pipe()
    os.close(read)
    told = "for _ in range(100): log.error('unheard')\nassert logs.flush(5)\nprint('well')"
    process = logging_process(told, write, *shell)
    os.close(write)
    assert process.communicate(timeout=20)[0] == "well\n"


def test_lines_for_journald_begin_with_their_priority(tmp_path):
    for format, log in (("text", tmp_path / "text"), ("json", tmp_path / "json")):
        with log.open("wb") as file:
            stat = os.fstat(file.fileno())
            program = f"""
os.environ["JOURNAL_STREAM"] = "{stat.st_dev}:{stat.st_ino}"
logs.configure({format!r})
log.info('well')
log.error('failed')
logs.write('ERROR', 'failed for good', dict, stack='Traceback:\\n  here')
"""
            logging_process(program, file.fileno()).communicate(timeout=20)
        lines = log.read_text().splitlines()
        assert [line[:3] for line in lines] == ["<6>", "<3>", "<3>", *(["<3>", "<3>"] if format == "text" else [])]
    assert [json.loads(line[3:])["message"] for line in lines] == ["well", "failed", "failed for good"]


def test_a_stderr_that_is_not_journalds_has_no_priorities(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        logging_process("os.environ['JOURNAL_STREAM'] = '1:2'\nlog.info('x')", file.fileno()).communicate(timeout=20)
    assert not (tmp_path / "log").read_text().startswith("<")


def test_a_full_disk_costs_lines_and_says_so_when_there_is_room_again(tmp_path):
    process = logging_process(
        """
os.dup2(os.open('/dev/full', os.O_WRONLY), 2)
log.info('lost')
logs.flush()
os.dup2(os.open(sys.stdin.readline().strip(), os.O_WRONLY | os.O_CREAT), 2)
log.info('kept')
""",
        subprocess.DEVNULL,
    )
    process.communicate(f"{tmp_path / 'log'}\n", timeout=20)
    said = (tmp_path / "log").read_text()
    assert re.sub(r"\S+Z ", "", said) == (
        "WARNING outlive.logs: 1 log line was dropped here: stderr did not take more\nINFO    outlive.test: kept\n"
    )


def test_a_forked_process_writes_its_own_lines_and_none_twice(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        process = logging_process(
            """
log.info('before')
if os.fork():
    os.wait()
    log.info('parent')
else:
    log.info('child')
""",
            file.fileno(),
        )
        process.communicate(timeout=20)
    said = [line.rpartition(" ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(said) == ["before", "child", "parent"]


def test_log_lines_of_other_libraries_do_not_block_either():
    read, write = os.pipe()
    process = logging_process("for _ in range(2_000): logging.getLogger('asyncio').error('x' * 100)", write)
    os.close(write)
    process.communicate(timeout=20)
    assert process.returncode == 0
    os.close(read)
