"""How a command starts: it imports only its own module."""

import subprocess
import sys

from outlive.cli import MODULES, load


def test_every_command_is_listed_with_the_module_that_registers_it() -> None:
    app = load()
    commands = [(one.name, one.callback) for one in app.registered_commands]
    groups = [
        (one.name, one.typer_instance and one.typer_instance.registered_callback) for one in app.registered_groups
    ]
    found: dict[str, set[str]] = {}
    for name, function in commands + [(name, group and group.callback) for name, group in groups]:
        module = getattr(function, "__module__").removeprefix("outlive.cli.")  # noqa: B009
        found.setdefault(module, set()).add(name or getattr(function, "__name__"))  # noqa: B009
    assert found == {module: set(names) for module, names in MODULES.items()}


def test_a_command_imports_no_other_command_s_module() -> None:
    script = "import sys; from outlive.cli import load; load(['queues']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    others = {f"outlive.cli.{module}" for module in MODULES} - {"outlive.cli.queues"}
    assert "outlive.cli.queues" in loaded
    assert not {*others, "outlive.worker", "rich.live", "rich.progress"} & set(loaded)
