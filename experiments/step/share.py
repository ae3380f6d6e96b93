"""Jobs on the same GPUs: how much faster together than in turn, each with its own overlap.

    python -m experiments.step.share [--effort SECONDS] [--only TEXT]

Pairs of jobs on modelled V100, each at the best small ratio that is tried. Two trainings, a GPT of 760 million
parameters and one of BERT-large's sizes, run on four GPUs, data parallel over a network and inside one machine, and as
pipelines. A GPT of 8 layers of 1024 and one of 8 of 512, training or inference, run on two, one a machine or both in
one, data parallel, as pipelines or tensor-parallel. Writes results/share.json.
"""

from __future__ import annotations

from argparse import Namespace
from typing import NamedTuple

from experiments.lib.provenance import Record, Row
from experiments.lib.script import script
from weft.app.lib.options import SearchOptions
from weft.app.share.search import Question, share_sources
from weft.models.spec.spec import parse_spec


class Job(NamedTuple):
    """A GPT: its sizes, its kind of run, and its shape where it runs as a pipeline."""

    layers: int
    hidden: int
    vocabulary: int
    sequence: int
    size: int  # samples of a micro-batch
    run: str = "training"
    shape: str | None = None


_GPT, _BERT = Job(24, 1536, 51200, 1024, 1), Job(24, 1024, 30592, 512, 8)


def _small(hidden: int, run: str, sequence: int, size: int = 1, shape: str = "chain") -> Job:
    return Job(8, hidden, 51200, sequence, size, run, shape)


_TRAINING, _INFERENCE = _small(1024, "training", 1024), _small(512, "inference", 512)
#: By name: GPUs, GPUs of a machine, how specs that can run data parallel do, micro-batches a step, and the jobs.
PAIRS: dict[str, tuple[int, int, str, int, Job, Job]] = {
    "data parallel, four machines": (4, 1, "data", 4, _GPT, _BERT),
    "data parallel, one machine": (4, 4, "data", 4, _GPT, _BERT),
    "pipelines, one machine": (4, 4, "pipeline", 16, _GPT, _BERT),
    "training, data parallel, and inference, two machines": (2, 1, "auto", 8, _TRAINING, _INFERENCE),
    "training, data parallel, and inference, one machine": (2, 2, "auto", 8, _TRAINING, _INFERENCE),
    "training as a pipeline, and inference, two machines": (2, 1, "pipeline", 8, _TRAINING, _INFERENCE),
    "two inferences, long and short requests, two machines":
        (2, 1, "pipeline", 8, _small(1024, "inference", 1024, 4), _small(512, "inference", 32, 8)),
    "two inferences, one tensor-parallel, one machine":
        (2, 2, "pipeline", 8, _small(1024, "inference", 1024, 1, "tensor"), _INFERENCE),
    "training, tensor-parallel, and inference, one machine":
        (2, 2, "pipeline", 8, _small(1024, "training", 1024, 1, "tensor"), _INFERENCE)}


def row(name: str, effort: float) -> Row:
    """A pair at the best ratio that is tried."""
    gpus, machine, parallel, count, *jobs = PAIRS[name]
    specs = [parse_spec(f"""
name: {letter}
model: {{family: gpt, layers: {job.layers}, hidden: {job.hidden}, heads: {16 if job.layers == 24 else job.hidden // 64},
         vocabulary: {job.vocabulary}, sequence: {job.sequence}}}
costs: roofline
cluster: {{gpus: {gpus}, memory: 32 GiB, device: v100, gpus_per_machine: {machine}}}
{job.run}: {{micro_batches: {count}, micro_batch_size: {job.size}}}
{f"placement: {{shapes: [{job.shape}]}}" if job.shape else ""}
""") for letter, job in zip("AB", jobs, strict=True)]
    kept = share_sources(specs, Question(None, parallel=parallel),
                         SearchOptions(time_limit=600.0, effort=effort)).to_json()
    return {"pair": name, **{key: kept[key] for key in ("ratio", "period", "period_bound", "proven", "speedup",
                                                        "speedup_bound")}}


@script("share.json", effort=10.0, only="")
def main(options: Namespace, record: Record) -> None:
    record.rows(row(name, options.effort) for name in PAIRS if options.only in name)
