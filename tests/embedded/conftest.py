"""A base directory that the server's account can reach, and users, both removed after the test."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from outlive import embedded
from tests.driving.folders import open_folder
from tests.embedded.actors import NewUser, Person, User, end_everything_at


@pytest.fixture
def base() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder
        end_everything_at(folder)


@pytest.fixture
def directory(base: Path) -> Iterator[Path]:
    """The directory of a server to come. The test's own lease is released after the test."""
    path = base / "home"
    yield path
    embedded.release(path, wait_s=10)


@pytest.fixture
def new_user(base: Path) -> Iterator[NewUser]:
    users: list[User] = []

    def new(directory: Path | None, *, env: Mapping[str, str] | None = None, person: Person | None = None) -> User:
        users.append(User(directory, env=env, person=person))
        return users[-1]

    yield new
    for user in users:
        user.kill()
