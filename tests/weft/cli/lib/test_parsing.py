"""Help: light, on one screen, and with what was meant where a command or an option is misspelled."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from tests.support.commands import refusal, shows
from weft.cli.commands import GROUPS, commands
from weft.cli.lib.parsing import describe

HEAVY = {"altair", "networkx", "numpy", "ortools", "pandas", "pydantic", "rich", "torch", "yaml"}


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name)
    describe(parser, commands()[name])
    return parser


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["solve", "--help"], ["slove"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = ("import sys\nfrom weft.cli.main import main\n"
            f"try: main({arguments!r})\nexcept SystemExit: pass\n"
            f"heavy = {HEAVY!r} & set(sys.modules)\nassert not heavy, heavy")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, capture_output=True)


def test_a_command_s_help_imports_no_other_command() -> None:
    code = ("import sys\nfrom weft.cli.main import main\ntry: main(['plan', '--help'])\nexcept SystemExit: pass\n"
            "own = [name for name in sys.modules if name.startswith('weft.cli.commands.')]\n"
            "assert own == ['weft.cli.commands.plan'], own")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, capture_output=True)


def test_the_overview_is_one_screen_with_every_command_in_its_group() -> None:
    lines = shows("--help").splitlines()
    assert len(lines) == 1 + len(commands()) and max(map(len, lines)) <= 80  # and a line of how to go on
    assert [line[9:].split()[0] for line in lines[1:]] == list(commands())
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == list(GROUPS)


@pytest.mark.parametrize(("arguments", "words"), [
    (["slove"], "there is no command 'slove'; did you mean 'solve'?"),
    (["compair", "x.yaml"], "did you mean 'compare'?"),
    (["gpt.yaml"], "to search for its schedule: weft solve gpt.yaml"),
    (["--objective", "span"], "there is no option --objective; a command comes first"),
    (["solve", "x.yaml", "--time-limt", "3"],
     "weft solve: there is no option --time-limt; did you mean '--time-limit'?"),
    (["export", "s.json", "--to", "megatron", "-o", "s"], "there is no option --to"),
    (["sweep", "--memroy=3"], "there is no option --memroy; did you mean '--memory'?"),
])
def test_what_was_meant_is_proposed(arguments: list[str], words: str) -> None:
    assert words in refusal(*arguments)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(shell: str) -> None:
    pytest.importorskip("shtab")
    script = shows("completion", shell)
    for name in commands():
        assert name in script
        for action in parser_of(name)._actions:
            for option in action.option_strings:
                assert option.lstrip("-") in script, (name, option)


def test_every_size_may_be_written_with_its_unit_and_no_space() -> None:
    found = []
    for name in commands():
        for action in parser_of(name)._actions:
            option = "".join(action.option_strings[-1:])
            if action.metavar == "SIZE" or option in ("--reserve", "--sizes"):
                assert callable(action.type) and action.type("45MiB") == 45 * 2**20, (name, option)
                found.append((name, option))
            if action.metavar == "SIZE" and option == "--memory":
                assert callable(action.type)
                with pytest.raises(argparse.ArgumentTypeError, match="did you mean '24 GiB'"):
                    action.type("24")
            assert action.metavar != "BYTES", f"{name} {option} reads a number without a unit"
    assert {("train", "--memory"), ("profile", "--memory"), ("replay", "--reserve"),
            ("transports", "--sizes")} <= set(found)
