"""The page of metrics that people read is the one that the code goes by, and follows the conventions of Prometheus."""

from pathlib import Path

import pytest

from outlive.metrics import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_of_metrics_is_made_from_the_code() -> None:
    assert PAGE.read_text().endswith("\n\n" + catalogue.as_markdown())


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
