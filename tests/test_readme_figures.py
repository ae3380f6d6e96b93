"""The README's numbers are those of the experiments' files: none is stated that no file bears out."""

from __future__ import annotations

import re

import pytest

from experiments.claims import CLAIMS, Claim
from experiments.provenance import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A number by itself: not a part of a name such as GPT-1.3B, fp16 or 1F1B.
NUMBER = re.compile(r"(?<![\w.,-])\d[\d.,]*(?:e-?\d+)?(?![\w.,-]*[A-Za-z_])")
#: What the README states that no experiment measures, by where it comes from.
STATED = {
    "the demo, which tests/test_cli.py runs": ("a cap of 24 GiB", ),
    "sizes of what is asked": (
        "12 models and numbers of devices",
    ),
}


def prose(text: str) -> str:
    """Without code, tables and comments, on one line."""
    text = re.sub(r"```.*?```|<!--.*?-->", " ", text, flags=re.DOTALL)
    return one_line("\n".join(line for line in text.splitlines() if not line.startswith(("|", "![", "#"))))


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.name}: {claim.text[:40]}")
def test_a_claim_is_in_the_readme_as_its_file_bears_it_out(claim: Claim) -> None:
    assert one_line(claim.told()) in prose(README), f"the README must say: {claim.told()}"


def test_every_number_is_an_experiments_or_stated_elsewhere() -> None:
    rest = prose(README)
    for told in sorted((one_line(claim.told()) for claim in CLAIMS), key=len, reverse=True):
        rest = rest.replace(told, " ")
    rest = re.sub(r"`[^`]*`|\[([^]]*)\]\([^)]*\)", " ", rest)
    for phrase in sorted((phrase for phrases in STATED.values() for phrase in phrases), key=len, reverse=True):
        rest = rest.replace(phrase, " ")
    left = [rest[max(0, found.start() - 50):found.end() + 30] for found in NUMBER.finditer(rest)]
    assert not left, "numbers that no experiment bears out:\n" + "\n".join(left)


def test_every_experiment_that_the_readme_names_has_a_claim() -> None:
    named = set(re.findall(r"experiments/(\w+)\.py", README)) - {"small_gpt"}
    assert named - {claim.name.partition("/")[0] for claim in CLAIMS} <= {"replay_gpt", "bounds"}  # no number of theirs
