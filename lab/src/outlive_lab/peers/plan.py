"""Reads peers.toml: which systems are measured, and in which modes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("peers.toml")
OURS = "outlive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to run the workers of a system."""

    command: str
    settings: str
    jobs: int
    workers: int = 1
    """How many processes run the command."""
    environment: Mapping[str, str] = field(default_factory=dict)
    also: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class System:
    name: str
    title: str
    store: str
    install: Sequence[str]
    modes: Mapping[str, Mode]

    @property
    def driver(self) -> str:
        """The module of `drivers` that knows this system."""
        return f"with_{self.name}"


def systems() -> list[System]:
    """outlive is the first."""
    return [_system(name, table) for name, table in tomllib.loads(FILE.read_text(encoding="utf-8")).items()]


def _system(name: str, table: dict[str, Any]) -> System:
    modes = {key: Mode(**value) for key, value in table.items() if isinstance(value, dict)}
    return System(name, table["title"], table["store"], table.get("install", ()), modes)
