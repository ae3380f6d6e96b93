"""A config.json and its hardware in place of a spec: pipelines of equal GPUs, and replicas of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.models.files.limits import (
    MAX_BATCH,
    MAX_DEVICES,
    MAX_GRID_GPUS,
    MAX_MICRO_BATCHES,
    MAX_NAME,
    MAX_SEQUENCE,
)
from weft.models.hardware.device_files import TABLE_FILES
from weft.models.hardware.devices import DEVICES
from weft.models.spec.spec import Spec

if TYPE_CHECKING:
    from weft.app.lib.sources import Source

#: Default tokens of a sequence, if the model supports more.
_SEQUENCE = 4096
#: The usual number of GPUs in a machine.
_MACHINE = 8
#: Micro-batches a step for each GPU of a pipeline, if no batch is given.
_ROUNDS = 4


def is_config(source: Source) -> bool:
    """Whether ``source`` names a file with the contents of a config.json."""
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
    """The model as a spec for every number of stages that divides ``gpus``, fewest first, each with a descriptive
    sentence: all other GPUs run replicas, each with its share of ``batch`` sequences.

    Raises ``ValueError`` for missing, unknown or incompatible values, and the exceptions of reading the config.
    """
    from weft.models.candidates.gpu_costs import spec_graph

    where, device, length, made = _reading(source, gpus, device, micro_batch, sequence, batch)
    assert gpus is not None

    def spec_of(depth: int, micro_batches: int) -> Spec:
        return made(depth, {"micro_batches": micro_batches, "micro_batch_size": micro_batch})

    kind = DEVICES[device].name
    graph = spec_graph(spec_of(1, 1))
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
        rounds = whole // replicas // micro_batch
        others = f" and {replicas} replicas, whose sum of gradients is not counted" if replicas > 1 else ""
        samples = f"{whole} samples" + (f" of {length} tokens" if length else "")
        yield spec_of(depth, rounds), (
            f"{graph.parameter_count():,} parameters; {depth} stage{'s' * (depth > 1)} of one {kind}{others}; a "
            f"batch of {samples}, {rounds} micro-batches of {micro_batch} for each pipeline")


def grid_of_config(source: str | os.PathLike[str], parallel: Mapping[str, Any], *, gpus: int | None = None,
                   device: str | None = None, micro_batch: int | None = None, sequence: int | None = None,
                   batch: int | None = None) -> Spec:
    """The model as a spec of a uniform grid of all ``gpus``, with the degrees of ``parallel`` (others are auto), for
    steps of ``batch`` sequences (default 4 micro-batches for each GPU). Raises the same as :func:`config_specs`."""
    from weft.models.spec.spec import with_values

    *_, made = _reading(source, gpus, device, micro_batch, sequence, batch, MAX_GRID_GPUS)
    assert gpus is not None
    spec = made(gpus, {"global_batch_size": batch or _ROUNDS * gpus * (micro_batch or 1)}, parallel={})
    size = {} if micro_batch is None else {"micro_batch": micro_batch}
    return with_values(spec, {"parallel": {**size, **parallel}}, "the degrees asked for")


def _reading(source: str | os.PathLike[str], gpus: int | None, device: str | None, micro_batch: int | None,
             sequence: int | None, batch: int | None, most_gpus: int = MAX_DEVICES
             ) -> tuple[str, str, int | None, Callable[..., Spec]]:
    """The file, the device, tokens of a sequence, and a function from the number of GPUs, training and other entries to
    a spec. Raises ``ValueError`` for missing or unknown values."""
    from weft.models.spec.huggingface import UnknownType, read_config

    where = os.fspath(source)
    for name, value, most in (("gpus", gpus, most_gpus), ("micro-batch", micro_batch, MAX_BATCH),
                              ("sequence", sequence, MAX_SEQUENCE), ("batch", batch, MAX_MICRO_BATCHES)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise ValueError(f"{where}: {name} is {value!r:.60}, it must be a whole number from 1 to {most}")
    if gpus is None:
        raise ValueError(f"{where}: is a config.json, which says the model alone; say how many GPUs run it "
                         "(--gpus 64, --device h100)")
    kinds = [name for name in DEVICES if name != "cpu"]  # with its built-in memory
    if device is None or (device not in kinds and not device.endswith(TABLE_FILES)):
        found = "missing" if device is None else f"{device!r}"
        raise ValueError(f"{where}: device is {found}, it must be one of {', '.join(kinds)}, or a table that weft "
                         "calibrate wrote (.json, .yaml)")
    device = device if device in DEVICES else os.path.abspath(device)
    try:
        longest = getattr(read_config(Path(source)), "sequence", None)
        length = sequence or (longest and min(longest, _SEQUENCE))
    except UnknownType:  # captured, where transformers is installed, at a length of its own
        length = sequence

    def made(on: int, training: Mapping[str, int], **more: Any) -> Spec:
        machines = {"gpus_per_machine": _MACHINE} if on > _MACHINE else {}
        spec = Spec.model_validate({
            "name": Path(where).resolve().parent.name[:MAX_NAME] or "model",
            "model": {"config": Path(where).name, **({"sequence": length} if length else {})},
            "cluster": {"gpus": on, "device": device, **machines}, "training": dict(training), **more})
        spec._where, spec._folder = where, Path(where).parent
        return spec

    return where, device, length, made
