"""The degrees of a uniform grid of GPUs, and their compatibility.

GPUs are numbered as in Megatron-LM: those of ``tensor`` are neighbours, then come ``context``, ``data`` and, outermost,
``pipeline``. Experts are distributed over groups of ``context`` times ``data``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from weft.models.hardware.devices import DEVICES, DeviceType
from weft.models.spec.families import GptModel, MoeModel
from weft.models.spec.placement import ContextKeys, Precision, Recompute
from weft.models.spec.spec import SpecError

#: The 8-bit type of products; a device's table says whether it has units for it.
FP8 = "float8_e4m3fn"


@dataclass(frozen=True, slots=True)
class Degrees:
    """How many GPUs do what (see :class:`~weft.models.spec.placement.Parallel`), and how often what is run.

    ``micro_batch``: sequences in a micro-batch. ``imbalance``: the expert tokens of the most loaded GPU as a multiple
    of an even share. ``collective_bytes``: of one gradient element while it is summed.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    data: int = 1
    expert: int = 1
    context: int = 1
    zero: int = 1
    recompute: Recompute = "none"
    micro_batch: int = 1
    precision: Precision = "bf16"
    sequence_parallel: bool = True
    collective_bytes: int = 4
    imbalance: float = 1.0
    context_keys: ContextKeys = "ring"
    overlap_experts: bool = False
    expert_machines: int | None = None

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def of_stage(self) -> int:
        """GPUs that run the same stages."""
        return self.tensor * self.context * self.data

    @property
    def stages(self) -> int:
        """Stages of the pipeline, counting each chunk."""
        return self.pipeline * self.virtual

    @property
    def title(self) -> str:
        """Such as "TP8 PP8 VP3 DP16": degrees of 1 left out, then other non-default settings."""
        named = (("TP", self.tensor), ("PP", self.pipeline), ("VP", self.virtual), ("CP", self.context),
                 ("EP", self.expert), ("DP", self.data))
        words = [f"{name}{number}" for name, number in named if number > 1] or ["one GPU"]
        if self.zero != 1 and self.data * self.context > 1:
            words.append(f"ZeRO-{self.zero}" if self.zero else "replicated")
        words += [f"micro-batch {self.micro_batch}"]
        words += [] if self.recompute == "none" else [f"{self.recompute} recomputation"]
        return " ".join(words)

    def micro_batches(self, batch: int) -> int:
        """Of each replica, in a step of ``batch`` sequences."""
        return batch // (self.data * self.micro_batch)


def divisors(number: int) -> list[int]:
    """Of a number of 1 or more, rising."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def require_precision(precision: Precision, device: DeviceType, where: str) -> None:
    """Refuse 8 bits if ``device`` does not support them (:class:`~weft.models.spec.spec.SpecError`)."""
    if precision == "fp8" and FP8 not in device.flops:
        able = ", ".join(name for name, known in DEVICES.items() if FP8 in known.flops)
        raise SpecError(f"{where}: parallel.precision is fp8, but {device.name} multiplies in no 8 bits; name one of "
                        f"{able}, or give bf16")


def fit(degrees: Degrees, model: GptModel, gpus: int, batch: int) -> bool:
    """Whether :func:`require_degrees` has nothing against ``degrees``."""
    try:
        require_degrees(degrees, model, gpus, batch, "")
    except SpecError:
        return False
    return True


def require_degrees(degrees: Degrees, model: GptModel, gpus: int, batch: int, where: str) -> None:
    """Refuse degrees incompatible with ``model``, ``gpus`` or the ``batch``. Raises
    :class:`~weft.models.spec.spec.SpecError` with the possible numbers."""
    def refuse(key: str, reason: str) -> None:
        raise SpecError(f"{where}: parallel.{key} is {getattr(degrees, key)}, {reason}")

    for key in ("tensor", "pipeline", "context", "data"):
        if gpus % getattr(degrees, key):
            refuse(key, f"which does not divide cluster.gpus ({gpus}); its divisors are {_listed(divisors(gpus))}")
    if degrees.gpus != gpus:
        others = degrees.gpus // degrees.data
        named = f"{degrees.tensor} (tensor) x {degrees.pipeline} (pipeline) x {degrees.context} (context)"
        if gpus % others:
            raise SpecError(f"{where}: parallel: {named} are {others} GPUs, which do not divide cluster.gpus ({gpus})")
        refuse("data", f"and {named} x {degrees.data} are {degrees.gpus} GPUs, not cluster.gpus ({gpus}); "
               f"data: {gpus // others} would be right")
    groups = model.kv_heads or model.heads
    if groups % degrees.tensor:
        of = f"kv_heads ({groups})" if groups != model.heads else f"heads ({groups})"
        refuse("tensor", f"which does not divide {of}; its divisors are {_listed(divisors(groups))}")
    parts = degrees.context * (degrees.tensor if degrees.sequence_parallel else 1)
    if model.sequence % parts:
        named = "context x tensor" if parts != degrees.context else "context"
        refuse("context", f"but sequences of {model.sequence} tokens cannot be in {parts} equal parts ({named}); "
               f"the divisors of {model.sequence} are {_listed(divisors(model.sequence))}")
    require_experts(degrees.expert, model, where)
    sharing = degrees.data * degrees.context
    if sharing % degrees.expert:
        experts = getattr(model, "experts", 1)
        refuse("expert", f"but experts are dealt out over data x context ({sharing} GPUs); what divides both is "
               f"{_listed(divisors(gcd(sharing, experts)))}")
    entries = model.layers + model.predict + 2
    if degrees.stages > entries:
        raise SpecError(f"{where}: parallel.pipeline {degrees.pipeline} x virtual {degrees.virtual} are "
                        f"{degrees.stages} stages, but the model has {entries} entries with embedding and head; each "
                        "stage needs one")
    if degrees.virtual > 1 and degrees.pipeline == 1:
        refuse("virtual", "but parallel.pipeline is 1: chunks are passed on between stages; give virtual: 1")
    _require_batch(degrees, batch, where)


def require_experts(expert: int, model: GptModel, where: str) -> None:
    """Refuse to distribute the experts of ``model`` over ``expert`` GPUs if it has none, too few, or they do not divide
    evenly (:class:`~weft.models.spec.spec.SpecError`)."""
    if expert == 1:
        return
    experts = model.experts if isinstance(model, MoeModel) else 0
    own = f"{where}: parallel.expert is {expert}"
    if not experts:
        raise SpecError(f"{own}, but the model has no experts; give 1")
    if experts % expert:
        what = "does not divide" if expert < experts else "is more than"
        raise SpecError(f"{own}, which {what} the model's {experts} experts; the divisors are "
                        f"{_listed(divisors(experts))}")


def _require_batch(degrees: Degrees, batch: int, where: str) -> None:
    unit = degrees.data * degrees.micro_batch
    if batch % unit:
        near = " or ".join(str(some) for some in (batch // unit * unit, (batch // unit + 1) * unit) if some)
        raise SpecError(f"{where}: the batch is {batch} sequences, but {degrees.data} replicas (parallel.data) with "
                        f"micro-batches of {degrees.micro_batch} need a multiple of {unit}; make it {near}")
    if batch // unit < degrees.pipeline:
        raise SpecError(f"{where}: the batch of {batch} sequences gives each of {degrees.data} replicas "
                        f"{batch // unit} micro-batches of {degrees.micro_batch}, fewer than parallel.pipeline "
                        f"({degrees.pipeline}); the least batch is {unit * degrees.pipeline}")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
