"""`manage.py outlive`: becomes any command of outlive, on the database of a backend of the project."""

from __future__ import annotations

import argparse
import re
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from outlive.cli import MODULES
from outlive.django.management.handover import become, refuse_to_replace_a_caller, take_backend

NEEDS_APP = (["worker"], ["up"], ["enqueue"])


class Command(BaseCommand):
    help = "Run a command of outlive on the project's database: `manage.py outlive jobs --state failed`."

    def add_arguments(self, parser: CommandParser) -> None:
        take_backend(parser)
        parser.epilog = f"The commands are {', '.join(MODULES)}. `manage.py outlive COMMAND --help` says more."
        parser.add_argument("words", nargs=argparse.REMAINDER, help="The command, and what it takes.")

    def handle(self, *_: Any, backend: str, pythonpath: str | None, words: list[str], **__: Any) -> None:
        refuse_to_replace_a_caller(self)
        if words[:1] in NEEDS_APP and not any(re.fullmatch(r"[\w.]+:\w+", word) for word in words):
            words.insert(1, f"outlive.django.worker:{backend}")
        become(*words, backend=backend, pythonpath=pythonpath)
