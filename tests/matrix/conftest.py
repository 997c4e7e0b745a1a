"""Servers, clocks and networks of a test's own. Workers use the test's own server, if it asks for one."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.driving.databases import new_database
from tests.driving.folders import open_folder
from tests.matrix.clocks import Clock
from tests.matrix.containers import IMAGE, ROOT, build
from tests.matrix.networks import Network, new_network
from tests.matrix.servers import Programs, Server


@pytest.fixture(scope="session")
def base() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def image() -> str:
    """What deploy/Dockerfile makes of this checkout."""
    build(ROOT / "deploy" / "Dockerfile", IMAGE, ROOT, "--volume=/etc/ssl/certs:/etc/ssl/certs:ro")
    return IMAGE


@pytest.fixture(scope="session")
def programs(base: Path) -> Programs:
    return Programs(base)


@pytest.fixture(scope="session")
def pattern(programs: Programs, base: Path) -> Server:
    """The cluster that all others are copied from, which is faster than initdb."""
    server = Server(programs, base / "pattern")
    server.make()
    return server


@pytest.fixture
def new_server(programs: Programs, pattern: Server, base: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers that don't run yet, and removes them after the test."""
    made: list[Server] = []

    def make(*, empty: bool = False, **settings: str) -> Server:
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=base))
        made.append(Server(programs, folder, settings=settings))
        if not empty:
            made[-1].copy_from(pattern)
        return made[-1]

    yield make
    for server in made:
        server.stop()
        shutil.rmtree(server.folder)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network of the test's own, between a worker and its database."""
    with new_network() as made:
        yield made


@pytest.fixture
def clock(base: Path) -> Clock:
    """The clock of the test's own server."""
    return Clock(base / f"clock-{uuid4().hex[:8]}")


@pytest.fixture
def server(new_server: Callable[..., Server], request: pytest.FixtureRequest) -> Server:
    server = new_server()
    if "clock" in request.fixturenames:
        server.environ = request.getfixturevalue("clock").environ
    server.start()
    return server


@pytest.fixture
def database_url(request: pytest.FixtureRequest, server_url: str) -> Iterator[str]:
    """The database of workers, the app and connections: on the test's own server if it asks for one."""
    if "server" in request.fixturenames:
        server: Server = request.getfixturevalue("server")
        yield server.url
        return
    with new_database(server_url) as url:
        yield url
