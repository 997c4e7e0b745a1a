"""Directories that are refused, each with a sentence, and left as they were."""

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from outlive import embedded
from outlive.errors import EmbeddedError
from tests.embedded.actors import AM_ROOT, DEBIAN_15, needs_debian_15, needs_root, processes_at


def test_a_symbolic_link_is_refused(base, directory):
    real = base / "real"
    real.mkdir(mode=0o755)
    directory.symlink_to(real)
    with pytest.raises(EmbeddedError, match="is a symbolic link"):
        embedded.ensure(directory)
    assert list(real.iterdir()) == []
    assert stat.S_IMODE(real.stat().st_mode) == 0o755


@needs_root
def test_a_directory_of_another_user_is_refused_by_root(directory):
    directory.mkdir()
    os.chown(directory, 12345, 12345)
    with pytest.raises(EmbeddedError, match="belongs to user 12345, but it must belong to root, postgres or"):
        embedded.ensure(directory)
    assert list(directory.iterdir()) == []


@needs_root
def test_a_cluster_of_another_user_in_our_directory_is_refused(directory):
    (directory / "locks").mkdir(parents=True)
    (directory / "data").mkdir()
    os.chown(directory / "data", 12345, 12345)
    with pytest.raises(EmbeddedError, match="data belongs to user 12345"):
        embedded.ensure(directory)


@pytest.mark.skipif(AM_ROOT, reason="root may use what belongs to root")
def test_a_directory_of_another_user_is_refused_by_an_ordinary_user():
    with pytest.raises(EmbeddedError, match="belongs to root, but it must belong to you"):
        embedded.ensure("/var/tmp")


@pytest.mark.long
@needs_debian_15
def test_a_cluster_of_another_major_version_is_refused_and_still_good(directory):
    embedded.ensure(directory, binaries=DEBIAN_15)
    assert embedded.release(directory, wait_s=5)
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 15, but the programs in .* are \d+"):
        embedded.ensure(directory)
    assert not processes_at(directory)
    embedded.ensure(directory, binaries=DEBIAN_15)


def test_a_version_written_by_a_later_postgres_is_refused(directory):
    embedded.ensure(directory, settings={"fsync": "off"})
    assert embedded.release(directory, wait_s=5)
    (directory / "data" / "PG_VERSION").write_text("99\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 99"):
        embedded.ensure(directory)


def test_a_directory_with_other_files_is_refused_and_keeps_its_mode(directory):
    directory.mkdir(mode=0o755)
    (directory / "thesis.tex").touch()
    with pytest.raises(EmbeddedError, match="holds other files"):
        embedded.ensure(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert [path.name for path in directory.iterdir()] == ["thesis.tex"]


def test_a_file_is_refused(directory):
    directory.touch()
    with pytest.raises(EmbeddedError, match="is not a directory"):
        embedded.ensure(directory)


def test_a_path_that_postgres_would_cut_off_is_refused(base):
    with pytest.raises(EmbeddedError, match="too long for Postgres"):
        embedded.ensure(base / "/".join(["x" * 99] * 9))


@needs_root
def test_a_directory_that_the_servers_account_cannot_reach_is_refused_by_name():
    closed = Path(tempfile.mkdtemp(prefix="outlive-test-", dir="/var/tmp"))
    try:
        with pytest.raises(EmbeddedError, match=f"can't pass through {closed}"):
            embedded.ensure(closed / "home")
    finally:
        shutil.rmtree(closed)
