"""The README's numbers are those of the experiments' files: none is stated that no file bears out."""

from __future__ import annotations

import re

import pytest

from experiments.lib.claims import CLAIMS, Claim
from experiments.lib.provenance import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A number by itself: not a part of a name such as GPT-1.3B, fp16 or 1F1B.
NUMBER = re.compile(r"(?<![\w.,-])\d[\d.,]*(?:e-?\d+)?(?![\w.,-]*[A-Za-z_])")
#: What the README states that no experiment measures, by where it comes from.
STATED = {
    "names": ("(NeurIPS 2024)", "Adam, AdamW or LAMB and 1/N of", "for 12 models and numbers"),
    "what an experiment asks": (
        "all-reduce of 1000 behind 1000 of computation and before 100",
        "chosen among 1, 2, 4, 8 and 16 that cost 20 each to launch",
        "On a chain of GPT-1.3B on four V100s, 8 micro-batches",
        "On one V100", "on 2 to 8 that compute together", "On 4 to 32 modelled V100s",
        "draws random durations on 8 to 128 devices", "On two nodes with 10 or 25 Gbit/s"),
    "specs and what weft takes": (
        "at a cap of 24 GiB a GPU", "measured (GPT-1.3B and T5-770M on 1, 2, 4 and 8 V100s are shipped",
        "a stage may be on 2, 4, 8 … GPUs", "rank 0's host",
        "rank 0 measures operators and stages", "exact as decimals up to 2^36 ticks",
        "Exit status: 0 good,", "; 1 the answer is no (an invalid", "; 2 bad usage or a bad file; 3 a fault",
        "130 stopped before there was an answer", "no period is searched above 2,048 blocks",
        "At most 65,536 micro-batches a spec and 2,000,000 operations a schedule"),
    "tests": (
        "the measured one within 5 % over sockets (tested on two ranks)",
        "pipelining runtime (2.13) on 2 and 3 ranks, with gradients equal to one process within 1e-13",
        "counts as proven within 1e-6 of its bound",
        "torch 2.13 on CPU is what is tested, 2.11 was tried by hand; what differs from 2.6 on"),
    "what ran on a GPU": ("On one H100 (", "torch 2.11)", "a GPT of 1.4 and one of 2.8 billion parameters",
                          "With 2 and 4 ranks together on that GPU", "on one H100: CUDA timing"),
}


def prose(text: str) -> str:
    """Without code, tables and comments, on one line."""
    text = re.sub(r"```.*?```|<!--.*?-->|^\d+\. ", " ", text, flags=re.DOTALL | re.MULTILINE)
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
    named = set(re.findall(r"experiments/\w+/(\w+)\.py", README)) - {"small_gpt"}
    assert named - {claim.name.partition("/")[0] for claim in CLAIMS} <= {"replay_gpt", "bounds"}  # no number of theirs
