"""The text that Prometheus reads, made by prometheus-client from plain figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from outlive.errors import not_installed
from outlive.metrics.catalogue import BUCKETS_S, DATABASE, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]
Spread = tuple[Sequence[int], float]
"""A histogram: how many values each bucket has, the last one beyond all bounds, and their sum."""
Values = Sequence[tuple[Labels, float | Spread]]
Figures = Mapping[Metric, Values]
_BOUNDS = [*map(repr, BUCKETS_S), "+Inf"]


def require() -> None:
    """ConfigError if prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise not_installed("metrics_listen", "prometheus-client", extra="metrics") from None


def text(figures: Figures, database: str, *, process: bool = False) -> bytes:
    """The text of these figures of this database; with `process`, also the memory, CPU time and files of this one."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(figures, database))
    if process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    def __init__(self, figures: Figures, database: str) -> None:
        self._figures, self._database = figures, database

    def collect(self) -> Iterator[Family]:
        from prometheus_client import metrics_core as core

        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        for metric, values in self._figures.items():
            family: Any = kinds.get(metric.kind, core.HistogramMetricFamily)(
                metric.name, metric.help, labels=(*metric.labels, DATABASE)
            )
            for own, value in values:
                labels = (*own, self._database)
                if isinstance(value, tuple):
                    buckets, total = value
                    family.add_metric(labels, list(zip(_BOUNDS, accumulate(buckets), strict=True)), total)
                else:
                    family.add_metric(labels, value)
            yield family
