"""print a script that completes commands and options

The script completes weft's commands, their options, and names of files and folders.

example:
  eval "$(weft completion bash)"                            # this shell; for all: in ~/.bashrc
  weft completion bash > ~/.local/share/bash-completion/completions/weft
  weft completion fish > ~/.config/fish/completions/weft.fish
  weft completion zsh > ~/.zsh/completions/_weft            # a folder of $fpath
"""

from __future__ import annotations

import argparse
from typing import Annotated

from weft.app.lib.arguments import Option
from weft.cli.lib.command import GOOD, Call, command, describe

#: What stands for the name of a folder, and for that of a file, in the help of an argument.
_FOLDERS = ("FOLDER", "DIR")
_FILES = ("FILE", "GRAPH", "JOB", "MODEL.pt2", "PLAN", "SCHEDULE", "SOURCE", "SPEC", "TIMELINE", "FILE.py:FUNCTION")


@command()
def run(call: Call, shell: Annotated[str, Option("the shell that the script is for",
                                                 choices=("bash", "zsh", "fish", "tcsh"))]) -> int:
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
    print(shtab.complete(top, shell))
    return GOOD
