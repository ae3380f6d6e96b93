"""Jobs on the same GPUs: how much faster together than in turn, each with its own overlap.

    python -m experiments.step.share [--effort SECONDS] [--only TEXT]

Pairs of jobs on modelled V100 (``experiments/data/jobs.yaml``), each at the best small ratio that is tried. Two
trainings, a GPT of 760 million parameters and one of BERT-large's sizes, run on four GPUs, data parallel over a network
and inside one machine, and as pipelines. A GPT of 8 layers of 1024 and one of 8 of 512, training or inference, run on
two, one a machine or both in one, data parallel, as pipelines or tensor-parallel. Writes results/share.json.
"""

from __future__ import annotations

import json
from argparse import Namespace

from experiments.lib.provenance import Record, Row, given
from experiments.lib.script import script
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_sources
from weft.models.spec.spec import Spec, parse_spec

GIVEN: Row = given("jobs.yaml")


def spec_of(letter: str, name: str, pair: Row) -> Spec:
    """One job of a pair."""
    job = GIVEN["jobs"][name]
    return parse_spec(json.dumps({
        "name": letter, "model": job["model"], "costs": "roofline",
        "cluster": {"gpus": pair["gpus"], "memory": "32 GiB", "device": "v100", "gpus_per_machine": pair["machine"]},
        job["run"]: {"micro_batches": pair["micro_batches"], "micro_batch_size": job["size"]},
        **({"placement": {"shapes": [job["shape"]]}} if "shape" in job else {})}))


def row(name: str, effort: float) -> Row:
    """A pair at the best ratio that is tried."""
    pair = GIVEN["pairs"][name]
    kept = share_sources([spec_of(*each, pair) for each in zip("AB", pair["jobs"], strict=True)],
                         Question(None, parallel=pair["parallel"]),
                         SearchOptions(time_limit=600.0, effort=effort)).to_json()
    return {"pair": name, **{key: kept[key] for key in ("ratio", "period", "period_bound", "proven", "speedup",
                                                        "speedup_bound")}}


@script("share.json", effort=10.0, only="")
def main(options: Namespace, record: Record) -> None:
    record.rows(row(name, options.effort) for name in GIVEN["pairs"] if options.only in name)
