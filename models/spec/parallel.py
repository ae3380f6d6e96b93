"""The section ``parallel`` of a spec: the degrees of parallelism, as configured in frameworks, each given or
``auto``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from weft.models.files.limits import MAX_BATCH, MAX_GRID_GPUS
from weft.models.spec.base import Section, refuse

#: The operators recomputed before their backward: none, those between queries and context, cheap ones, or whole layers.
Recompute: TypeAlias = Literal["none", "selective", "light", "full"]
#: The type of products in linear layers; everything else is in 16 bits.
Precision: TypeAlias = Literal["bf16", "fp8"]
#: The transfer of keys and values of other parts of a sequence: part by part, or all at once before attention.
ContextKeys: TypeAlias = Literal["ring", "gather"]


def _number(least: int, most: int) -> Any:
    def read(value: object) -> int | None:
        """``None`` is auto."""
        if value is None or value == "auto":
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"it must be a whole number from {least} to {most}, or auto")
        return value

    return BeforeValidator(read), WithJsonSchema({"anyOf": [
        {"type": "integer", "minimum": least, "maximum": most}, {"const": "auto"}]})


def _recompute(value: object) -> str | None:
    if value is None or value == "auto":
        return None
    if value not in get_args(Recompute):
        raise ValueError("it must be none, selective, light, full or auto")
    return str(value)


_Degree: TypeAlias = Annotated[int | None, *_number(1, MAX_GRID_GPUS)]
_Zero: TypeAlias = Annotated[int | None, *_number(0, 3)]
_Size: TypeAlias = Annotated[int | None, *_number(1, MAX_BATCH)]
_Recompute: TypeAlias = Annotated[Recompute | None, BeforeValidator(_recompute), WithJsonSchema(
    {"enum": [*get_args(Recompute), "auto"]})]


class Parallel(Section):
    """A uniform grid of GPUs: tensor x context x data x pipeline are all of them. What is auto is searched."""

    tensor: _Degree = Field(default=None, description="GPUs that compute each layer together, neighbours. Default "
                            "auto.", examples=[8])
    pipeline: _Degree = Field(default=None, description="Stages in a row, or times virtual of them. Default auto.",
                              examples=[8])
    virtual: _Degree = Field(default=None, description="Chunks of the model on each GPU of a pipeline (interleaved). "
                             "Default auto.", examples=[5])
    data: _Degree = Field(default=None, description="Replicas, each of which has its share of the batch. Default auto.")
    expert: _Degree = Field(default=None, description="GPUs among which a layer's experts are dealt out, of those of "
                            "data and context. Default auto.", examples=[8])
    context: _Degree = Field(default=None, description="GPUs that have a part each of every sequence. Default auto.")
    zero: _Zero = Field(default=None, description="What the GPUs of data and context divide of what they all would "
                        "hold: 0: nothing, 1: optimizer states, 2: gradients too, 3: parameters too (FSDP). Default "
                        "auto.")
    recompute: _Recompute = Field(default=None, description="What runs again before its backward: none, selective "
                                  "(what is between queries and the context, where attention is not fused), light "
                                  "(norms, activations of experts, what latent vectors are made into), or full (all "
                                  "of every layer). Default auto.")
    micro_batch: _Size = Field(default=None, description="Sequences in a micro-batch. Default auto.", examples=[1])
    precision: Precision = Field(default="bf16", description="In what linear layers of transformer layers multiply: "
                                 "bf16 (16 bits) or fp8, with its casts. Default bf16.")
    sequence_parallel: bool = Field(default=True, description="Whether what lies between the layers that tensor "
                                    "divides is cut along the sequence. Default true.")
    collective_bytes: Literal[2, 4] = Field(default=4, description="Bytes of one number of a gradient as it is summed "
                                            "over data. Default 4.")
    context_keys: ContextKeys = Field(default="ring", description="With context: whether keys and values come by in a "
                                      "ring, behind attention, or are gathered before it. Default ring.")
    overlap_experts: bool = Field(default=False, description="With experts dealt out: whether the all-to-alls of one "
                                  "micro-batch run behind another's computation. Default false.")
    expert_machines: int | None = Field(default=None, ge=1, le=MAX_GRID_GPUS, description="With experts dealt out: on "
                                        "how many machines those of a token are at most, to each of which it is sent "
                                        "once and passed on there (DeepEP; 4 in DeepSeek-V3). Default: it is sent to "
                                        "each of its experts.", examples=[4])
    imbalance: float = Field(default=1.0, ge=1.0, le=1024, description="With experts dealt out: what the GPU with the "
                             "most tokens has, as a multiple of an even share. Default 1.")


def _section(value: Any) -> Any:
    if value == "auto":
        return {}
    if value is not None and not isinstance(value, dict | Parallel):
        refuse("must be auto, or a mapping such as {tensor: 8, pipeline: 4, data: auto}")
    return value


#: The section, or ``auto`` in its place.
ParallelSection: TypeAlias = Annotated[Parallel, BeforeValidator(_section)]
