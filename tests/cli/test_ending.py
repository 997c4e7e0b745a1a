"""The ends of commands: exit codes, one line on stderr, no passwords, pipes that close, Ctrl-C."""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.driving.commands import PASSWORD, Cli, ended
from tests.waiting import eventually


@pytest.mark.parametrize(
    "url", ["postgresql//me:{}@host/db", "host=h password='{}", "postgresql://me:p@{}@127.0.0.1:1/db"]
)
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_malformed_url_is_wrong_use_and_its_password_stays_secret(url, debug):
    ran = Cli(url.format(PASSWORD))("jobs", *debug)
    assert ran.code == 2
    assert "outlive: database_url" in ran.err
    assert PASSWORD not in ran.err + ran.out


def test_an_unknown_setting_is_wrong_use(cli, tmp_path):
    (tmp_path / "mine.toml").write_text("lese_s = 5\n")
    ran = cli("jobs", "--config", tmp_path / "mine.toml")
    assert ran.code == 2
    assert "did you mean lease_s?" in ran.err


def test_a_missing_privilege_is_an_error_of_one_line(cli, database_url):
    limited = make_conninfo(database_url, options="-c role=outlive_job")
    ran = Cli(limited)("jobs")
    assert ran.code == 1
    assert ran.err.startswith("outlive: the database refused: permission denied")


def test_a_bug_is_called_one_and_shows_its_traceback_only_when_asked(cli, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("outlive.store.find_page", broken)
    ran = cli("jobs")
    assert ran.code == 1
    assert ran.err == "outlive: this is a bug in outlive: KeyError: 'oops'; --debug prints the traceback\n"
    assert "Traceback" in cli("jobs", "--debug").err


def test_a_pipe_that_closes_is_no_error(cli, queue):
    queue.make_many(1500)
    process = cli.process("jobs", "--limit", 10000, COLUMNS="160")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("job ")
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_ctrl_c_during_the_imports_prints_nothing():
    stop = "cli.load = lambda words: os.kill(os.getpid(), signal.SIGINT)"
    script = f"import os, signal; from outlive import cli; {stop}; cli.main()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.long
def test_without_a_url_the_embedded_server_is_used_and_made_ready():
    home = Path(tempfile.mkdtemp(prefix="outlive-cli-", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        ran = ended(Cli(None).process("jobs", "--json", OUTLIVE_HOME=str(home / "server")))
        assert ran.json == []
        told = f"OUTLIVE_DATABASE_URL is not set: using the embedded Postgres in {home / 'server'}"
        assert ran.err.startswith(f"outlive: {told}, at postgresql:///postgres?host=")
        again = ended(Cli(None).process("jobs", "--json", OUTLIVE_HOME=str(home / "server")))
        assert (again.json, again.err) == ([], "")
        eventually(lambda: not (home / "server" / "socket").exists(), what="the server stops")
    finally:
        shutil.rmtree(home)
