"""The help of the laboratory's commands."""

from laboratory import lab


def test_bench_is_handed_its_own_options():
    ran = lab(None)("bench", "--help")
    assert ran.code == 0
    assert ran.out.startswith("usage: ./run bench")


def test_the_help_of_gameday_is_whole_in_80_columns_and_has_an_example():
    ran = lab(None, columns=80)("gameday", "--help")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "…" not in ran.out
    assert "Example: ./run gameday" in ran.out
