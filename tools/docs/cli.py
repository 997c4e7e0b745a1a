"""docs/reference/cli.md: every command, argument and option, as `outlive --help` has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from rich.text import Text

from outlive.cli import load

COMMON = "Common"
"""The panel of the options that every command takes: they are listed once."""
HEAD = """\
# Commands

Made from the command line itself; `./run docs --generate` writes this page. `outlive COMMAND --help` says the same.
[settings.md](settings.md) explains settings and exit codes.

"""


def as_markdown() -> str:
    root: Any = typer.main.get_command(load())
    lines = [line for name in root.commands for line in _command(f"outlive {name}", root.commands[name])]
    common = [one for one in root.commands["jobs"].params if _is_common(one)]
    shared = ["## Options of every command", "", *_options(common), ""]
    return HEAD + "\n".join([*shared, *lines])


def _command(path: str, command: Any) -> Iterator[str]:
    """A command, and those below it."""
    if command.hidden:
        return
    depth = "#" * path.count(" ")
    own = [one for one in command.params if not _is_common(one) and one.name != "help" and not one.hidden]
    arguments = [one for one in own if one.param_type_name == "argument"]
    options = [one for one in own if one.param_type_name == "option"]
    words = [path, *(_metavar(one) for one in arguments), *(["[OPTIONS]"] if options else [])]
    if commands := getattr(command, "commands", {}):
        words.append("[COMMAND]")
    yield from (f"#{depth} {path}", "", "```", " ".join(words), "```", "", _plain(command.help or ""), "")
    if own:
        yield from (*_options([*arguments, *options]), "")
    for name, below in commands.items():
        yield from _command(f"{path} {name}", below)


def _options(options: list[Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for one in options:
        name = _metavar(one) if one.param_type_name == "argument" else ", ".join(one.opts)
        yield f"| `{_escaped(name)}` | {_escaped(_plain(getattr(one, 'help', None) or ''))}{_default(one)} |"


def _metavar(argument: Any) -> str:
    word = (argument.metavar or argument.name.upper()).strip("[].")
    many = "…" if argument.nargs == -1 else ""
    return f"{word}{many}" if argument.required else f"[{word}{many}]"


def _default(option: Any) -> str:
    """What holds without the option, if that is a value of its own."""
    value = option.default
    if option.param_type_name == "argument" or value is None or value is False or callable(value) or value == ():
        return ""
    if "Default:" in (option.help or ""):
        return ""
    return f" Default: `{getattr(value, 'value', value)}`."


def _is_common(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == COMMON


def _plain(text: str) -> str:
    """The words of a help text, without its colours."""
    return Text.from_markup(inspect.cleandoc(text)).plain.strip()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
