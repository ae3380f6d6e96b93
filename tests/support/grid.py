"""What every command does with every kind of input: it runs, or refuses in a sentence with these words.

A row is a command line. ``{src}`` stands for the input, ``{n}`` for ``-n`` where the input does not say how many
micro-batches run, ``{schedule}`` and ``{plan}`` for what ``weft solve`` and ``weft plan`` made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ROWS", "Row"]

_QUICK = "--effort 0.02 --time-limit 60 --quiet"


@dataclass(frozen=True)
class Row:
    """One command line. ``refused``: of the kinds of input that it refuses, words of the sentence; the others run.
    ``slow``: it takes more than a few seconds over all kinds."""

    command: str
    refused: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False


def _no(kinds: str, words: str) -> dict[str, str]:
    return dict.fromkeys(kinds.split(), words)


_PROBLEMS = "block choices jobs classes"
_SPECS = "layers family config graph lengths inference open decide"

ROWS: tuple[Row, ...] = (
    Row(f"solve {{src}} {{n}} {_QUICK} -o answer.json"),
    Row(f"solve {{src}} {{n}} {_QUICK} --objective span --json"),
    Row(f"solve {{src}} {{n}} {_QUICK} --objective rate --workers 2"),
    Row(f"solve {{src}} {{n}} {_QUICK} --objective latency --period 500"),
    Row(f"solve {{src}} {{n}} {_QUICK} --overlap auto"),
    Row(f"solve {{src}} {{n}} {_QUICK} --reorder"),
    Row(f"compare {{src}} {{n}} {_QUICK}"),
    Row(f"compare {{src}} {{n}} {_QUICK} --objective span --workers 2 --json"),
    Row("estimate {src}"),
    Row("estimate {src} --shape v --json"),
    Row(f"latency {{src}} {{n}} {_QUICK} --points 3 -o front.json"),
    Row(f"latency {{src}} {{n}} {_QUICK} --period 500 -o at.json"),
    Row(f"latency {{src}} {{n}} {_QUICK} --throughput 0.01 --workers 2 --json"),
    Row(f"sweep {{src}} {{n}} {_QUICK} --memory 1x,1.5x --workers 1 --no-cache --no-refine"),
    Row(f"sweep {{src}} {{n}} {_QUICK} --memory 1x,1.5x --workers 2 --no-cache --no-refine", slow=True),
    Row(f"sweep {{src}} {{n}} {_QUICK} --memory 1x --micro-batch-size 1,2 --recompute both --workers 1 --no-cache"),
    Row(f"sweep {{src}} {{n}} {_QUICK} --shapes chain,v --workers 1 --no-cache --no-refine"),
    Row(f"explain {{src}} {{n}} {_QUICK}"),
    Row(f"explain {{src}} {{n}} {_QUICK} --what-if --in-flight 2 --json"),
    Row(f"share {{src}} {{src}} {_QUICK} -o shared.json"),
    Row(f"share {{src}} layers.yaml {_QUICK} --ratio 1:2 --rounds 3 --json"),
    Row(f"share {{src}} layers.yaml {_QUICK} --parallel pipeline --workers 2"),
    Row(f"place {{src}} {_QUICK} -o placed.json"),
    Row(f"place {{src}} {_QUICK} --devices v100=2 --latency --operators --json"),
    Row(f"place {{src}} {_QUICK} --stage-graph --problem stages.json --workers 2"),
    Row(f"place {{src}} {_QUICK} --stage-graph --replicate --slack 0.1"),
    Row(f"place {{src}} {_QUICK} --stage-graph --schedule step.json"),
    Row(f"place {{src}} {_QUICK} --stage-graph --micro-batch-sizes 1,2 --schedule step.json"),
    Row(f"place {{src}} {_QUICK} --stage-graph --micro-batch-sizes 1,2 --overhead 0.0001 --one-size --mini-batch 4"),
    Row("place {src} --time-limit 5 --quiet --memory --problem decided.json"),
    Row("check {schedule}"),
    Row("check {schedule} --json"),
    Row("explain {schedule}"),
    Row("explain {schedule} --what-if --in-flight 2 --json --quiet"),
    Row("draw {schedule} -o drawn.svg -o drawn.html --critical"),
    Row("draw {schedule} -o drawn.json --title drawn"),
    Row("draw {schedule} -o drawn.png --baseline {schedule}", slow=True),
    Row("draw {schedule} -o drawn.svg --history"),
    Row("plan {schedule} -o plan.json"),
    Row("replay {plan} --emulate"),
    Row("fit {plan} {plan}"),
    Row("export {schedule} -o out.csv"),
    Row("export {schedule} -o out.csv --format pytorch-comms"),
    Row("export {schedule} -o out.txt --format megatron"),
    Row("export {schedule} -o out.toml --format torchtitan"),
    Row("export {schedule} -o out.py --format nnscaler"),
    Row("export {schedule} -o out.json --format tessel"),
    Row("export {schedule} -o out.json --format perfetto"),
    Row("import {order} --problem {src} -o theirs.json"),
    Row("import {order} -o theirs.json"),
    Row("capture {src}"),
    Row("profile {src} --repeats 1 --quiet"),
    Row("train --example gpt --spec {src} --steps 1 --gpus 1 --time-limit 1", slow=True),
    # What somebody might give by mistake.
    Row("check {src}"),
    Row("draw {src} -o drawn.svg"),
    Row("plan {src}"),
    Row("export {src} -o out.csv"),
    Row("import {src} -o theirs.json"),
    Row("fit {src} {src}"),
    Row("replay {src} --emulate"),
    Row("train {src}"),
    *(Row(f"{command} {{schedule}} {_QUICK}") for command in ("solve", "compare", "latency", "place", "share {schedule}")),
    Row("estimate {schedule}"),
    Row("check {plan}"),
    Row(f"solve {{plan}} -n 2 {_QUICK}"),
    *(Row(f"{command} config.json -n 2 {_QUICK}") for command in ("solve", "compare", "latency")),
    *(Row(f"{command} operators.json -n 2 {_QUICK}") for command in ("solve", "compare", "latency")),
)
