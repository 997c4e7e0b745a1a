"""The metrics follow the conventions of Prometheus."""

import pytest

from outlive.metrics import catalogue


@pytest.mark.parametrize(
    "metric", [*catalogue.OF_WORKER, *catalogue.OF_PROCESS, *catalogue.OF_DATABASE], ids=lambda metric: metric.name
)
def test_a_metric_has_a_name_and_a_text_as_prometheus_wants_them(metric: catalogue.Metric) -> None:
    assert metric.name.startswith("outlive_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_seconds") or metric.kind != "histogram"
    assert metric.help.endswith(".")
    assert len(metric.help) > 10
    assert not metric.always or len(metric.labels) == 1
