"""The commands, a module each: its function, which :mod:`weft` exports, and what a shell shows of it.

The function's signature says what the command accepts, the module's docstring what its help says. A new command is a
module here with a ``run`` of :func:`~weft.cli.lib.command.command`, and its name in a group below. The modules import
at their top nothing that is heavy: ``weft COMMAND --help`` imports one of them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from weft.cli.lib.command import Command

__all__ = ["GROUPS", "command", "commands", "summary"]

#: The modules by what they are for, in the order in which ``weft --help`` shows their commands.
_GROUPS = {
    "look": ("demo", "estimate"),
    "search": ("solve", "compare", "sweep", "family", "latency", "share", "place"),
    "inspect": ("check", "explain", "draw"),
    "run": ("plan", "train", "replay", "export", "import_"),
    "measure": ("capture", "profile", "calibrate", "fit", "transports"),
    "editor": ("schema", "completion"),
}

#: The names of the commands by group. One that is a word of Python's has a module with a ``_`` behind it.
GROUPS = {title: tuple(module.rstrip("_") for module in modules) for title, modules in _GROUPS.items()}

_MODULES = {module.rstrip("_"): module for modules in _GROUPS.values() for module in modules}


def command(name: str) -> Command | None:
    """The command of this name, if there is one; no other one's module is imported."""
    if name not in _MODULES:
        return None
    found: Command = import_module(f"weft.cli.commands.{_MODULES[name]}").run
    return found


def commands() -> dict[str, Command]:
    """Every command by its name, in the order of the help."""
    return {name: found for name in _MODULES if (found := command(name)) is not None}


def summary(name: str) -> str:
    """What a command is for, the first line of its module; none is imported."""
    with open(Path(__file__).parent / f"{_MODULES[name]}.py", encoding="utf-8") as source:
        return source.readline().strip().strip('"')
