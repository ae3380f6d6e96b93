"""A config.json with what it runs on, in place of a spec: pipelines of equal GPUs, and replicas of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from weft.models.files.limits import MAX_BATCH, MAX_DEVICES, MAX_MICRO_BATCHES, MAX_NAME, MAX_SEQUENCE
from weft.models.hardware.devices import DEVICES
from weft.models.spec.spec import Spec

if TYPE_CHECKING:
    from weft.app.lib.sources import Source

__all__ = ["config_specs", "is_config"]

#: Tokens of a sequence where nothing else is said, if the model was made for more.
_SEQUENCE = 4096
#: GPUs of a machine, as most are built.
_MACHINE = 8
#: Micro-batches that each GPU of a pipeline runs in a step where no batch is given.
_ROUNDS = 4


def is_config(source: Source) -> bool:
    """Whether ``source`` names a file that is a config.json by what it holds."""
    if not isinstance(source, str | os.PathLike) or Path(source).suffix.lower() != ".json":
        return False
    try:
        found = json.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return Path(source).name == "config.json"
    return isinstance(found, dict) and "format" not in found and ("model_type" in found or "architectures" in found)


def config_specs(source: str | os.PathLike[str], *, gpus: int | None = None, device: str | None = None,
                 micro_batch: int = 1, sequence: int | None = None, batch: int | None = None,
                 ) -> Iterator[tuple[Spec, str]]:
    """The model as a spec for every number of stages that divides ``gpus``, fewest first, each with a sentence on what
    it is: all other GPUs run replicas, each its share of ``batch`` sequences.

    Raises ``ValueError`` for what is missing, unknown or does not go together, and what reading the config raises.
    """
    from weft.models.spec.huggingface import read_config
    from weft.models.zoo.graphs import model_graph

    where = os.fspath(source)
    for name, value, most in (("gpus", gpus, MAX_DEVICES), ("micro-batch", micro_batch, MAX_BATCH),
                              ("sequence", sequence, MAX_SEQUENCE), ("batch", batch, MAX_MICRO_BATCHES)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise ValueError(f"{where}: {name} is {value!r:.60}, it must be a whole number from 1 to {most}")
    if gpus is None:
        raise ValueError(f"{where}: is a config.json, which says the model alone; say how many GPUs run it "
                         "(--gpus 64, --device h100)")
    if device is None or device not in DEVICES:
        found = "missing" if device is None else f"{device!r}"
        raise ValueError(f"{where}: device is {found}, it must be one of {', '.join(DEVICES)}")
    model = read_config(Path(source), sequence=sequence)
    longest = getattr(model, "sequence", None)
    length = sequence if sequence or longest is None else min(longest, _SEQUENCE)
    if length != longest:
        model = read_config(Path(source), sequence=length)
    graph = model_graph(model)
    layers = len({operator.layer for operator in graph.operators})
    whole = batch or _ROUNDS * gpus * micro_batch
    depths = [depth for depth in range(1, min(gpus, layers) + 1)
              if gpus % depth == 0 and whole % (gpus // depth * micro_batch) == 0]
    if not depths:
        unit = gpus // max(depth for depth in range(1, min(gpus, layers) + 1) if gpus % depth == 0) * micro_batch
        raise ValueError(f"{where}: batch is {whole}, but {gpus} GPUs run {layers} layers as replicas of pipelines, "
                         f"with micro-batches of {micro_batch}; give a multiple of {unit}")
    for depth in depths:
        replicas = gpus // depth
        machines = {"gpus_per_machine": _MACHINE} if depth > _MACHINE else {}
        spec = Spec.model_validate({
            "name": Path(where).resolve().parent.name[:MAX_NAME] or "model",
            "model": {"config": Path(where).name, **({"sequence": length} if length else {})},
            "cluster": {"gpus": depth, "device": device, **machines},
            "training": {"micro_batches": whole // replicas // micro_batch, "micro_batch_size": micro_batch}})
        spec._where, spec._folder = where, Path(where).parent
        yield spec, _sentence(graph.parameter_count(), length, depth, replicas, whole, micro_batch, device)


def _sentence(parameters: int, length: int | None, depth: int, replicas: int, batch: int, micro_batch: int,
              device: str) -> str:
    shown = f"{length} tokens" if length else "one image"
    others = f" and {replicas} replicas, whose sum of gradients is not counted" if replicas > 1 else ""
    return (f"{parameters:,} parameters; {depth} stages of one {device}{others}; a batch of {batch} samples of "
            f"{shown}, {batch // replicas // micro_batch} micro-batches of {micro_batch} for each pipeline")
