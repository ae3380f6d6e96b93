"""``weft completion``: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import argparse

from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.parsing import describe

__all__ = ["COMMAND"]

#: What stands for the name of a folder, and for that of a file, in the help of an argument.
_FOLDERS = ("FOLDER", "DIR")
_FILES = ("FILE", "GRAPH", "JOB", "MODEL.pt2", "PLAN", "SCHEDULE", "SOURCE", "SPEC", "TIMELINE", "FILE.py:FUNCTION")


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="the shell that the script is for")


def _run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise ImportError("completion needs shtab: install it with  pip install 'weft[completion]'") from None
    from weft.cli.commands import commands

    top = argparse.ArgumentParser(prog="weft")
    top.add_argument("--version", action="version")
    group = top.add_subparsers(metavar="COMMAND", dest="command")
    for found in commands().values():
        parser = group.add_parser(found.name, help=found.summary)
        describe(parser, found)
        for action in parser._actions:
            kind = shtab.DIRECTORY if action.metavar in _FOLDERS else shtab.FILE if action.metavar in _FILES else None
            if kind is not None:
                action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(top, options.shell))
    return GOOD


COMMAND = Command(
    name="completion",
    summary="print a script that completes commands and options",
    paragraphs=(
        "The script completes weft's commands, their options, and names of files and folders.",
    ),
    example=('eval "$(weft completion bash)"                            # this shell; for all: in ~/.bashrc\n'
             "weft completion bash > ~/.local/share/bash-completion/completions/weft\n"
             "weft completion fish > ~/.config/fish/completions/weft.fish\n"
             "weft completion zsh > ~/.zsh/completions/_weft            # a folder of $fpath"),
    arguments=_arguments,
    run=_run,
)
