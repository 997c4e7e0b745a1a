"""The demo, as a newcomer runs it."""

from pathlib import Path

from tests.cli.world import Cli, ended


def test_the_demo_is_right_and_leaves_nothing_behind() -> None:
    before = set(Path("/var/tmp").glob("outlive-demo-*"))
    summary = ended(Cli(None).process("demo", "--json")).json
    assert summary["right"] is True
    assert (summary["acknowledged"], summary["succeeded"], summary["failed"]) == (30, 28, 1)
    assert [killer["signal"] for killer in summary["quarantined"]] == ["SIGSEGV"]
    assert summary["lost_and_reclaimed"] == summary["refused_too_late"] == 5
    assert summary["finished_twice"] == 0
    assert set(Path("/var/tmp").glob("outlive-demo-*")) <= before
