"""docs/RESULTS.md: ``experiments/results.md`` filled from the experiments' files, and a table of the scripts."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace

from experiments.lib.catalogue import EXPERIMENTS, HOME
from experiments.lib.provenance import ROOT
from experiments.lib.readings import READINGS
from experiments.lib.writing import table

PAGE, TEMPLATE = ROOT / "docs" / "RESULTS.md", HOME / "results.md"
#: By the name that the template uses: ``suite`` of ``never_worse/suite`` is left out.
_BY_NAME = {name.partition("/")[0]: experiment for name, experiment in EXPERIMENTS.items()}


class _Figures(dict[str, SimpleNamespace]):
    """The fields of each experiment that the template names, read where they are needed."""

    def __missing__(self, name: str) -> SimpleNamespace:
        experiment = _BY_NAME[name]
        source = f"([{experiment.script}](../experiments/{experiment.script}), `{experiment.commit}`)"
        numbers = {key: value for key, value in experiment.content.items() if key != "provenance"}
        self[name] = SimpleNamespace(**{"count": len(numbers.get("rows", ())), **numbers, **READINGS.get(
            name, lambda content: {})(numbers)}, source=source)
        return self[name]


def page() -> str:
    """The page as it has to be."""
    figures = _Figures(experiments=SimpleNamespace(table=_scripts()))
    filled = TEMPLATE.read_text(encoding="utf-8").format_map(figures)
    return "\n\n".join(_wrapped(paragraph) for paragraph in re.split(r"\n\n+", filled.strip())) + "\n"


def _scripts() -> str:
    return table(("command", "question", "commit", "result"), (
        (f"`{experiment.command}`", experiment.title.replace("|", "\\|"),
         f"`{experiment.commit}`",
         f"[{experiment.name}.json](../experiments/results/{experiment.name}.json)")
        for experiment in EXPERIMENTS.values()))


def _wrapped(paragraph: str) -> str:
    """``paragraph`` in lines of 120 characters; tables, headings and pictures stay."""
    if paragraph.startswith(("|", "#", "![", "```", "<!--")):
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)
