"""The pages of how-to about OpenTelemetry and Sentry: their apps and commands are run as they stand."""

import pytest

from tests.driving import pages
from tests.driving.receiving import receiving, tree
from tests.waiting import eventually


def test_the_page_of_opentelemetry_shows_the_trace_that_its_programs_make(database_url, tmp_path):
    page = "how-to/opentelemetry.md"
    with receiving() as receiver:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address, "OTEL_SERVICE_NAME": "shop-worker"}
        with pages.shell(tmp_path, database_url, **where) as shell:
            pages.run(page, shell, tmp_path, database_url)
        ran: dict[str, object] = {"wait default": {}, "run default": {"render": {}}}
        assert tree(receiver.spans()) == {"GET /orders/7": {"enqueue default": ran}}
        shown = next(block.text for block in pages.blocks_of(page) if "└─" in block.text)
        assert [line.strip("│├└─ ").split("  ")[0] for line in shown.splitlines()] == [
            *("GET /orders/7", "enqueue default", "wait default", "run default", "render"),
        ]


@pytest.mark.long
def test_the_jobs_of_the_page_of_sentry_make_one_event_each(database_url, tmp_path):
    with receiving() as receiver:
        where = {"SENTRY_DSN": receiver.address.replace("//", "//key@") + "/7"}
        with pages.shell(tmp_path, database_url, **where) as shell:
            pages.run("how-to/sentry.md", shell, tmp_path, database_url)
            eventually(lambda: len(receiver.events()) == 2, within_s=60, what="both events are sent")
            eventually(lambda: len(receiver.items("check_in")) == 4, within_s=60, what="both schedules check in")
        raised, crashed = sorted(receiver.events(), key=lambda event: str(event["transaction"]))
        assert raised["exception"]["values"][0]["value"] == "order 7 has no address"
        assert crashed["extra"]["output"] == "resizing 7\n"
        assert crashed["contexts"]["outlive"]["signal"] == "SIGSEGV"
        functions = [frame["function"] for frame in crashed["exception"]["values"][0]["stacktrace"]["frames"]]
        assert functions == ["resize", "string_at"]
        made = [(one["monitor_slug"], one["status"]) for one in receiver.items("check_in")]
        slugs = ("hourly-sync", "nightly-report")
        assert sorted(made) == [(slug, status) for slug in slugs for status in ("in_progress", "ok")]
        nightly = next(one for one in receiver.items("check_in") if one["monitor_slug"] == "nightly-report")
        assert nightly["monitor_config"]["schedule"] == {"type": "crontab", "value": "0 2 * * *"}
        assert not receiver.items("transaction"), "nothing turns tracing on"
