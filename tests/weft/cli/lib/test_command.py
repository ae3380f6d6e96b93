"""A command is its functions' signatures: what a shell gives comes to them, as text means it.

Help: light, on one screen, and with what was meant where a command or an option is misspelled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import pytest

from weft.app.lib.arguments import Option, count, positive, taking, texts
from weft.app.lib.options import OptionsTaken, SearchKeywords, SearchOptions
from weft.cli.commands import GROUPS, commands
from weft.cli.commands.train import train
from weft.cli.lib.command import Call, Command, Json, Quiet, command, describe, words_of
from weft.cli.main import main

if TYPE_CHECKING:
    from somewhere_heavy import Thing  # type: ignore[import-not-found]


_SEARCH = OptionsTaken(time_limit=7.0, objectives=("makespan", "rate"))


class Keywords(TypedDict, total=False):
    """What may be asked."""

    slack: Annotated[float, Option("how far", "X", positive)]
    whole: Annotated[bool, Option("in parts", flags="--parts", default=True)]
    untold: int


def first(source: Annotated[str | Thing, Option("what", "SOURCE")], *,
          names: Annotated[list[str] | None, Option("whose", "N,N", texts, "-n --names")] = None,
          options: Annotated[SearchOptions | None, _SEARCH] = None, listener: Callable[[], None] = lambda: None,
          **keywords: Unpack[Keywords]) -> dict[str, Any]:
    return {"source": source, "names": names, "options": options, **keywords}


def second(source: Annotated[str, Option("what", "SOURCE")], stages: Annotated[str, Option("which", flags="--stages")],
           *files: Annotated[str, Option("more", "FILE")]) -> tuple[object, ...]:
    return source, stages, files


calls: list[Call] = []


def shown(call: Call, *, output: Annotated[str | None, Option("where", "FILE", flags="-o --output")] = None,
          quiet: Quiet = False, as_json: Json = False) -> int:
    calls.append(call)
    return 7 if output else 0


def called(made: Command, *words: str) -> Call:
    parser = argparse.ArgumentParser(exit_on_error=False)
    made.arguments(parser)
    assert made.run(parser.parse_args(words)) == (7 if "-o" in words else 0)
    return calls.pop()


def test_what_is_not_given_is_as_the_signature_says() -> None:
    assert called(command(first)(shown), "x")() == {
        "source": "x", "names": None, "whole": True, "options": SearchOptions(time_limit=7.0)}


def test_what_is_given_comes_to_the_function_as_its_text_means() -> None:
    call = called(command(first)(shown), "x", "-n", "a, b", "--slack", "2", "--parts", "--objective", "rate",
                  "--effort", "3", "-o", "out", "--json")
    assert call(names=["c"]) == {"source": "x", "names": ["c"], "slack": 2.0, "whole": False,
                                 "options": SearchOptions(7.0, 3.0, objective="rate")}
    assert call()["names"] == ["a", "b"] and call.as_json and call.output == "out" and not call.quiet


def test_what_one_of_several_functions_needs_may_be_left_out() -> None:
    made = command(first, second)(shown)
    assert called(made, "x", "f", "g", "--stages", "s")(second) == ("x", "s", ("f", "g"))
    assert called(made, "x", "f")(first)["source"] == "x"


def test_a_value_that_means_nothing_is_the_end_of_a_sentence() -> None:
    with pytest.raises(argparse.ArgumentError, match="--slack: is -1, it must be a number greater than 0"):
        called(command(first)(shown), "x", "--slack", "-1")


def test_defaults_are_told_once() -> None:
    for name, made in commands().items():
        parser = argparse.ArgumentParser()
        made.arguments(parser)
        for action in parser._actions:
            assert (action.help or "").count("(default") <= 1, (name, action.dest)


@dataclass(frozen=True)
class Asked:
    """Several arguments in one."""

    name: Annotated[str | None, Option("whose", "NAME")] = None
    _: KW_ONLY
    times: Annotated[int, Option("how often", "N", count)] = 3


@taking(Asked)
def third(asked: Asked) -> Asked:
    """What was asked."""
    return asked


def test_the_fields_of_a_dataclass_are_arguments() -> None:
    assert third("a", times=2) == called(command(third)(shown), "a", "--times", "2")() == Asked("a", times=2)
    assert third.__doc__ == "What was asked." and third() == Asked()
    with pytest.raises(TypeError, match=r"^third\(\) got an unexpected keyword argument 'time'"):
        third(time=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("values", [
    {"setup": "a.py:f"}, {"example": "gpt", "steps": 3, "memory": 2**30, "as_json": True, "figure": "x.svg"},
    {"setup": "b:g", "checkpoint": "folder", "every": 2, "timeout": 7.5, "gpus": 4}])
def test_the_words_of_a_call_are_the_call(values: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    commands()["train"].arguments(parser)
    found = vars(parser.parse_args(words_of(train, values)))
    assert {name: found[name] for name in values} == values
    assert words_of(train, {name: None for name in found}) == []


def test_the_keywords_of_a_search_are_the_fields_that_a_shell_can_give() -> None:
    fields = OptionsTaken(objectives=("makespan", "span"), tools=True, differing=True).fields
    assert set(fields) == set(SearchKeywords.__annotations__)


HEAVY = {"altair", "networkx", "numpy", "ortools", "pandas", "pydantic", "rich", "torch", "yaml"}


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


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


def test_the_overview_is_one_screen_with_every_command_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(["--help"], capsys, 0).splitlines()
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
def test_what_was_meant_is_proposed(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in said(arguments, capsys, 2)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
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
