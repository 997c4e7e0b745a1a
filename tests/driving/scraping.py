"""Reading what a worker serves: its probes and its metrics, over real connections."""

import http.client
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from tests.driving.workers import Worker

ANY_PORT = "127.0.0.1:0"


def place_of(worker: Worker) -> tuple[str, int]:
    """Where a worker that was started with `metrics_listen=ANY_PORT` listens."""
    worker.says("metrics and probes are at", within_s=30)
    return place_in(worker.log())


def place_in(log: str) -> tuple[str, int]:
    found = re.search(r"metrics and probes are at (\S+)", log)
    assert found
    parts = urlsplit(found[1])
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def get(place: tuple[str, int], path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the body of an answer."""
    connection = http.client.HTTPConnection(*place, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def send(place: tuple[str, int], request: bytes) -> bytes:
    """Everything that is answered to a request, until the server closes the connection."""
    with socket.create_connection(place, timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def scrape(place: tuple[str, int]) -> "Scraped":
    status, text = get(place, "/metrics")
    assert status == 200, text
    return Scraped(text)


class Scraped:
    """A text, parsed as Prometheus does."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self.databases = {sample.labels.pop("database", None) for sample in samples if "outlive_" in sample.name}
        self.values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.values.get((name, frozenset(labels.items())))

    def labels_of(self, name: str) -> Iterator[dict[str, str]]:
        """The labels of each sample of this name."""
        return (dict(labels) for sample, labels in self.values if sample == name)
