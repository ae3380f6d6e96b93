"""The commands of the command line, a module each: what it accepts, what its help says and what it runs.

A new command is a module here with its :class:`~weft.cli.lib.command.Command` as ``COMMAND``, and a name in the
list below. The modules import at their top nothing that is heavy: ``weft --help`` imports all of them.
"""

from __future__ import annotations

from importlib import import_module

from weft.cli.lib.command import Command

__all__ = ["commands"]

#: The modules, in the order in which ``weft --help`` shows their commands.
_MODULES = (
    "solve",
    "compare",
    "sweep",
    "latency",
    "share",
    "estimate",
    "check",
    "explain",
    "draw",
    "place",
    "plan",
    "export",
    "import_",
    "train",
    "replay",
    "fit",
    "capture",
    "profile",
    "transports",
    "demo",
    "schema",
)


def commands() -> dict[str, Command]:
    """Every command by its name, in the order of the help."""
    found: list[Command] = [import_module(f"weft.cli.commands.{module}").COMMAND for module in _MODULES]
    return {command.name: command for command in found}
