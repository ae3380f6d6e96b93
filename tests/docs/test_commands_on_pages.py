"""Every command that a page shows is one that weft takes, and the page of commands is what their help says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.lib.commands import PAGE, options_of, page
from tests.docs.test_pages import FENCES, PAGES
from tests.support.paths import ROOT
from weft.cli.commands import commands

SHOWN = sorted({*PAGES, ROOT / "examples" / "README.md"})
#: How a line calls weft: alone, or by way of torchrun or Python.
CALL = re.compile(r"^(?:\S.* -m )?weft (\w.*)$")
#: What a page leaves out of a call that is shown to name it, not to be run.
SHORT = re.compile(r"\[|…|\.\.\.")


def calls(text: str) -> Iterator[str]:
    """The arguments of every call of weft in the text's blocks of code, comments left out."""
    for block in FENCES.findall(text):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            for part in re.split(r"\s[#>|]", line)[0].split("&&"):
                if found := CALL.match(part.strip()):
                    yield found[1]


def inline(text: str) -> Iterator[str]:
    """The arguments of every call in backticks that has some."""
    for code in re.findall(r"`([^`\n]+)`", FENCES.sub("", text)):
        if (found := re.match(r"weft (\S+ .+)$", code)) and not SHORT.search(found[1]):
            yield found[1]


def refused(call: str) -> str | None:
    """What is wrong with the arguments of ``call``."""
    name, *words = shlex.split(call)
    command = commands().get(name)
    if command is None:
        return f"no command {name}"
    parser = options_of(command)
    known = {option for action in parser._actions for option in action.option_strings}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"{name} has no {unknown[0]}" if unknown else None


def unparsed(call: str) -> str | None:
    """What is wrong with ``call``, which is shown to be run."""
    if wrong := refused(call):
        return wrong
    name, *words = shlex.split(call)
    try:
        options_of(commands()[name]).parse_args(words)
    except SystemExit:
        return "its arguments are not taken"
    return None


@pytest.mark.parametrize("shown", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_a_page_shows_are_taken(shown: Path) -> None:
    text = shown.read_text(encoding="utf-8")
    wrong = [f"weft {call}: {why}" for call in calls(text) if (why := unparsed(call))]
    wrong += [f"weft {call}: {why}" for call in inline(text) if (why := refused(call))]
    assert not wrong, "\n".join(wrong)


def test_the_page_of_commands_is_what_their_help_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m experiments --docs"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700
