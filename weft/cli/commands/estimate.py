"""say what each stage needs and takes, before any search

SPEC is a model spec in YAML: a family of the zoo, a Hugging Face config.json, or layers with their costs. A config.json
may also stand in place of SPEC, with what it runs on: the shallowest pipelines that fit, and replicas of them on the
GPUs left.

Stages are cut as for 1F1B. The first table has, for each stage, parameters, activations per micro-batch, micro-batches
in flight, workspace, bytes sent, and times; the second has, for each GPU, weights, gradients, optimizer state,
activations and workspace beside its memory. Each number has its origin: measured, interpolated, modelled or given; for
modelled ones the known error is stated. Exit status 1: the model does not fit.

example:
  weft estimate t5.yaml
  weft estimate gpt.yaml --shape v --json
  weft estimate config.json --gpus 64 --device h100
  weft estimate config.json --gpus 64 --device h100 --parallel tensor=4,pipeline=8,data=auto
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from weft.app.lib.arguments import Option, degrees_of
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, NO, Call, Json, command
from weft.cli.lib.output import show

if TYPE_CHECKING:
    from weft.app.estimate import EstimateReport
    from weft.models.spec.spec import Spec


def estimate(
    source: Annotated[PathLike | Spec, Option("a model spec (.yaml), or a Hugging Face config.json", "SPEC")],
    *,
    gpus: Annotated[int | None, Option("of a config.json: how many GPUs", "N", int)] = None,
    device: Annotated[str | None, Option("of a config.json: the GPUs' kind, such as h100", "NAME")] = None,
    micro_batch: Annotated[int | None, Option("of a config.json: samples in a micro-batch (default 1)", "N",
                                              int)] = None,
    sequence: Annotated[int | None, Option(
        "of a config.json: tokens of a sequence (default 4096, or the most it was made for)", "N", int)] = None,
    batch: Annotated[int | None, Option(
        "of a config.json: samples in a step (default 4 micro-batches for each GPU)", "N", int)] = None,
    parallel: Annotated[Mapping[str, Any] | None, Option(
        "a uniform grid of the GPUs, what is left out or auto being searched: tensor=8,pipeline=4,data=auto, or auto; "
        "what a spec has under parallel", "DEGREES", degrees_of)] = None,
    shape: Annotated[str | None, Option("how stages are placed on the GPUs (default: the first that SPEC allows)",
                                        choices=("chain", "v", "loop", "wave"))] = None,
) -> EstimateReport:
    """What each stage of a model spec holds, sends and costs, before any search, and whether it fits the GPUs.

    The stages are those of ``shape`` (``chain``, ``v``, ``loop``, and ``wave`` where the spec gives a cut; default the
    first that the spec allows) under 1F1B. Every number says its origin: measured, interpolated, modelled or given;
    modelled ones with their known error. Of a Hugging Face ``config.json`` say ``gpus`` and ``device``, and what else
    differs: sequences of ``sequence`` tokens (default 4096, or the most it was made for), in micro-batches of
    ``micro_batch`` (1) and steps of ``batch``; it is estimated as the shallowest pipelines that fit, and replicas of
    them on the GPUs left. With ``parallel``, the degrees of a uniform grid (``{"tensor": 8}``; others are searched), it
    is the likeliest such grid, one GPU of each stage. ``str()`` is the table, ``.to_json()`` the numbers, ``.fits`` the
    verdict.

    Raises ``ValueError`` (``SpecError`` and its like) for a spec that means nothing or has no costs.
    """
    from weft.app.estimate import estimate_source

    return estimate_source(source, shape=shape, parallel=parallel, gpus=gpus, device=device, micro_batch=micro_batch,
                           sequence=sequence, batch=batch)


@command(estimate)
def run(call: Call, *, as_json: Json = False) -> int:
    found = call()
    show(found, as_json)
    return GOOD if found.fits else NO
