"""What the rounds have shown: kept as JSON after each, so that a run that was cut goes on; a page, and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outlive.cli import screen
from outlive_lab import environment
from outlive_lab.deaths.checker import IN_TIME_S, Tables, noticed
from outlive_lab.deaths.history import History
from outlive_lab.deaths.plan import FATES, Fate, Kind

KEPT = 20
"""How many breaches of a round are kept."""
RULES = (
    *("lost", "ended twice", "ended badly", "ended by another", "stale write accepted", "wrong blame", "made twice"),
    *("made in vain", "freed too early", "declared dead while it lived", "not declared dead", "declared dead too late"),
    *("left over", "verify"),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one round has shown."""

    deaths: dict[str, int]
    seen: dict[str, int]
    jobs: int
    attempts: int
    lost: int
    """Attempts that were lost with their worker."""
    quarantined: dict[str, int]
    tenths: dict[str, dict[int, int]]
    """How many deaths were noticed after how many tenths of a second, by how they can be."""
    slowest_s: dict[str, float]
    broken: dict[str, int]
    named: list[tuple[str, str, str]]
    played_s: float
    drained_s: float
    stood_s: float
    postgres: int

    @classmethod
    def of(
        cls,
        history: History,
        tables: Tables,
        wrong: Sequence[tuple[str, str, str]],
        played_s: float,
        drained_s: float,
        postgres: int,
    ) -> Outcome:
        times = noticed(history, tables)
        attempts = [one for some in tables.attempts.values() for one in some]
        return cls(
            deaths={str(fate): count for fate, count in history.deaths.items()},
            seen=dict(history.seen),
            jobs=len(tables.jobs),
            attempts=len(attempts),
            lost=sum(one.outcome == "lost" for one in attempts),
            quarantined=dict(Counter(str(tables.jobs[id]) for id in tables.quarantined)),
            tenths={how: dict(Counter(int(10 * one) + 1 for one in some)) for how, some in times.items()},
            slowest_s={how: some[-1] for how, some in times.items() if some},
            broken=dict(Counter(rule for rule, _, _ in wrong)),
            named=list(wrong[:KEPT]),
            played_s=round(played_s, 1),
            drained_s=round(drained_s, 1),
            stood_s=round(history.stood_s, 1),
            postgres=postgres,
        )


class Standing(msgspec.Struct, kw_only=True):
    seed: int
    rounds: list[Outcome] = []

    @property
    def deaths(self) -> int:
        return sum(sum(one.deaths.values()) for one in self.rounds)

    @property
    def right(self) -> bool:
        return not any(one.broken for one in self.rounds)

    @property
    def bound(self) -> str:
        """The rule of three."""
        if not self.deaths or not self.right:
            return "no bound"
        return f"none in {self.deaths:,} deaths: less than {300 / self.deaths:.2g} % of deaths, at 95 %"

    def total(self, name: str) -> Counter[str]:
        return sum((Counter(getattr(one, name)) for one in self.rounds), Counter[str]())

    def times(self) -> Iterator[tuple[str, Counter[int], float]]:
        for how in IN_TIME_S:
            tenths = sum((Counter(one.tenths.get(how, {})) for one in self.rounds), Counter[int]())
            yield how, tenths, max((one.slowest_s.get(how, 0.0) for one in self.rounds), default=0.0)

    def summary(self) -> dict[str, Any]:
        postgres = self.rounds[-1].postgres if self.rounds else 0
        return {
            "right": self.right,
            "deaths": self.deaths,
            "bound": self.bound,
            "broken": dict(self.total("broken")),
            "seed": self.seed,
            **environment.describe(f"{postgres // 10000}.{postgres % 10000}"),
            "rounds": self.rounds,
        }


def percentile(tenths: Counter[int], part: float) -> float:
    """In seconds, rounded up to a tenth."""
    left = part * tenths.total()
    for tenth in sorted(tenths):
        left -= tenths[tenth]
        if left <= 0:
            return tenth / 10
    return 0.0


def _place(directory: Path, seed: int) -> Path:
    return directory / f"deaths-{seed}.md"


def read(directory: Path | None, seed: int) -> Standing:
    """What an earlier run has left, if there was one."""
    path = _place(directory or Path(), seed).with_suffix(".json")
    return msgspec.json.decode(path.read_bytes(), type=Standing) if path.exists() else Standing(seed=seed)


def keep(standing: Standing, directory: Path) -> None:
    """Write deaths-SEED.json. A run may be cut at any moment, so the file is replaced as a whole."""
    directory.mkdir(parents=True, exist_ok=True)
    page = _place(directory, standing.seed)
    new = page.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(standing.summary()), indent=0) + b"\n")
    new.rename(page.with_suffix(".json"))


def write(standing: Standing, directory: Path) -> None:
    """Write deaths-SEED.json, .md and .png."""
    from outlive_lab.deaths.plot import draw  # Not at the top: most runs draw no picture.

    keep(standing, directory)
    page, summary = _place(directory, standing.seed), standing.summary()
    draw(standing, summary, page.with_suffix(".png"))
    page.write_text(_markdown(standing, summary), encoding="utf-8")


def show(standing: Standing) -> None:
    for title, head, rows in _tables(standing):
        wide = max(len(row[0]) for row in [[title], *rows]) + 2
        for row in ([title, *head], *rows):
            print(row[0].ljust(wide), *(cell.rjust(10) for cell in row[1:]))
        print()
    for rule, subject, words in [named for one in standing.rounds for named in one.named]:
        screen.say((f"{rule}: ", "bold red"), f"{subject} {words}")
    screen.say((closing(standing), "bold green" if standing.right else "bold red"))


def closing(standing: Standing) -> str:
    played_s = sum(one.played_s for one in standing.rounds)
    head = "right" if standing.right else f"wrong: {', '.join(standing.total('broken'))}"
    rate = standing.deaths / played_s if played_s else 0
    return f"{head}; {standing.bound} (seed {standing.seed}, {played_s / 60:.0f} min, {rate:.0f} deaths a second)"


def _tables(standing: Standing) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    deaths, seen, broken = standing.total("deaths"), standing.total("seen"), standing.total("broken")
    yield "death", ["times"], [[str(one), f"{deaths[one]:,}"] for one in Fate if one in FATES or one in deaths]
    counts = {
        "rounds": len(standing.rounds),
        "jobs": sum(one.jobs for one in standing.rounds),
        "attempts": sum(one.attempts for one in standing.rounds),
        "of those lost with their worker": sum(one.lost for one in standing.rounds),
        **{f"quarantined: {kind}": n for kind in Kind if (n := standing.total("quarantined")[kind])},
        **dict(sorted(seen.items())),
        "seconds in which nothing answered": round(sum(one.stood_s for one in standing.rounds)),
        **{rule: broken[rule] for rule in RULES},
    }
    yield "seen", ["times"], [[name, f"{count:,}"] for name, count in counts.items()]
    yield (
        "noticed",
        ["times", "p50", "p99", "slowest", "must"],
        [
            [how, f"{tenths.total():,}", *(f"{percentile(tenths, one):.1f} s" for one in (0.5, 0.99)),
             f"{slowest:.1f} s", f"≤ {IN_TIME_S[how]:g} s"]
            for how, tenths, slowest in standing.times()
        ],
    )  # fmt: skip


def _markdown(standing: Standing, summary: dict[str, Any]) -> str:
    versions = summary["versions"]
    lines = [
        f"# {standing.deaths:,} deaths, seed {standing.seed}",
        "",
        f"`./run deaths --deaths {standing.deaths} --seed {standing.seed}` on {summary['cpu_count']} cores beside "
        f"other work: outlive {versions['outlive']}, PostgreSQL {versions['postgres']}, Python {versions['python']}, "
        f"psycopg {versions['psycopg']}.",
        "",
        f"**{closing(standing)[0].upper()}{closing(standing)[1:]}.** What is counted, and what it can't show, is on "
        "[its page](../reference/deaths.md).",
        "",
        f"![deaths and how soon they were noticed]({_place(Path(), standing.seed).with_suffix('.png')})",
    ]
    for title, head, rows in _tables(standing):
        lines += ["", f"| {' | '.join([title, *head])} |", f"|---|{'---:|' * len(head)}"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    for rule, subject, words in [named for one in standing.rounds for named in one.named]:
        lines += ["", f"**{rule}**: {subject} {words}"]
    return "\n".join(lines) + "\n"
