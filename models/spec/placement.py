"""How a spec has its model put on GPUs: ``placement``, which placements are searched; or ``parallel``, how many GPUs do
what in a uniform grid, as frameworks are told, each number given or ``auto``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from weft.models.files.limits import MAX_BATCH, MAX_GRID_GPUS
from weft.models.spec.base import Section, refuse
from weft.models.spec.fields import Cut, Layout

Shape: TypeAlias = Literal["chain", "v", "loop", "wave", "groups", "tensor", "m", "nn", "k", "x", "data"]
BackwardMode: TypeAlias = Literal["full", "split"]
#: What a stage may do with its activations.
Activations: TypeAlias = Literal["keep", "recompute", "recompute-half", "recompute-ahead", "offload"]
ACTIVATIONS: tuple[Activations, ...] = ("keep", "recompute", "recompute-half", "recompute-ahead", "offload")

#: Stages that each GPU runs at least, by shape of one GPU a stage.
_LEAST_CHUNKS = {"chain": 1, "v": 2, "loop": 2, "wave": 3}
#: No shape has more stages on a GPU.
MAX_CHUNKS = 8
#: What is run again before its backward: nothing, what is between queries and the context, what is cheap, or all of
#: every layer.
Recompute: TypeAlias = Literal["none", "selective", "light", "full"]
#: In what linear layers multiply; everything else is in 16 bits.
Precision: TypeAlias = Literal["bf16", "fp8"]
#: How the keys and values of other parts of a sequence come to a GPU: part by part, or all at once before attention.
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


class PlacementSection(Section):
    """Which placements to search."""

    shapes: tuple[Shape, ...] = Field(
        default=("chain", "v", "loop", "wave", "groups", "tensor", "m", "nn", "k"), strict=False, min_length=1,
        description=(
            "One GPU a stage: chain: one stage a GPU. v: two, down the GPUs and back up. loop: two or more, again "
            "and again down the GPUs. wave: three or more, down the GPUs, up, and down again. GPUs that compute "
            "together, for a family or config on a known device: groups: a chain of stages on groups of GPUs, beside "
            "v or loop also several on each. tensor: all GPUs compute every layer. m: they compute the embedding and "
            "the head, and are a chain for the rest, beside v or loop also one of two chunks a group. nn: the same "
            "with an embedding inside, between encoder and decoder. k: towers beside each other, and all GPUs "
            "compute what joins them. x: two replicas of the model, one down the GPUs and one up. data: the whole "
            "model on every GPU, gradients summed; searched with --overlap auto. Default all but x and data."))
    backward: tuple[BackwardMode, ...] = Field(default=("full", "split"), strict=False, min_length=1, description=(
        "full: one backward block a stage. split: input gradient and weight gradient apart. Default both."))
    co_shard: tuple[Annotated[int, Field(ge=2, le=64)], ...] = Field(default=(), strict=False, max_length=4,
                                                                     description=(
        "Numbers of parts that attention and feed-forward parts of a layer may be in, run in turn on one GPU, each "
        "again before its backward (co-shard): stages of such layers keep less and take longer. Tried where "
        "activations keep stages on groups of GPUs from their best cuts. Default none."), examples=[[2, 4]])
    memory: Literal["layers", "decide"] = Field(default="layers", description=(
        "layers: cuts between layers, and recomputation as training says. decide: beside those, a chain cut at any "
        "operator, each kept, recomputed or (with cluster.host_bandwidth) offloaded to the host so that the slowest "
        "stage is fastest. Default layers."))
    choices: tuple[Literal["activations", "backward"], ...] = Field(default=(), strict=False, max_length=2,
        description=(
            "What is decided stage by stage, together with the schedule, in shapes of one GPU a stage. activations: "
            "what each stage keeps, see activations. backward: whether each stage's backward is whole or split; "
            "without it all are, or none is. Default none."), examples=[["activations", "backward"]])
    activations: tuple[Activations, ...] = Field(default=ACTIVATIONS, strict=False, min_length=2, description=(
        "What choices: [activations] chooses from. keep: what the layers save stays on the GPU. recompute: the "
        "backward runs the forwards again, layer by layer. recompute-half: so does the first half of the stage's "
        "layers. recompute-ahead: they run again as a block of their own, perhaps long before the backward. offload: "
        "to the host and back (with cluster.host_bandwidth). Default all that the cluster can."),
        examples=[["keep", "recompute"]])
    chunks: int = Field(default=3, ge=1, le=MAX_CHUNKS, description=(
        "The most stages that a GPU may run, in shapes of one GPU a stage: chain has 1, v 2, loop and wave any number "
        "up to it. Default 3."), examples=[4])
    cut: Cut | None = Field(default=None, description=(
        "One cut of the layers into stages instead of all: the number of layers on each stage, in order, or the first "
        "layer of each by name. There are as many stages as GPUs (a chain), twice as many (v, loop) or another "
        "multiple (loop, wave). Default: cuts are searched."), examples=[[6, 7, 7, 6]])
    layout: Layout | None = Field(default=None, description=(
        "The same as Megatron-LM writes it (pipeline_model_parallel_layout): E is the embedding, t a layer, L the "
        "head; | ends a stage, x*n and (...)*n repeat. Default: cuts are searched."),
        examples=["Et*5|(t*6|)*2,t*6L"])
    sequence_chunks: tuple[Annotated[int, Field(ge=2, le=64)], ...] = Field(default=(), strict=False, max_length=4,
        description=(
            "Of a decoder (families gpt and moe) in training: in how many chunks each micro-batch's sequence may pass "
            "the stages, one after the other, as in Seq1F1B. Each number is tried in chunks of even length and of even "
            "work, on the placements of one GPU a stage. Default none."), examples=[[2, 4]])

    @model_validator(mode="after")
    def _with_cut(self) -> PlacementSection:
        """What a layout says, as the cut that it is."""
        if self.layout is None:
            return self
        if self.cut is not None:
            refuse("cut and layout both say which layers each stage has; leave one of them out")
        return self.model_copy(update={"cut": self.layout, "layout": None})

    @model_validator(mode="after")
    def _check(self) -> PlacementSection:
        if all(_LEAST_CHUNKS.get(shape, 1) > self.chunks for shape in self.shapes):
            refuse(f"chunks is {self.chunks}, but shapes is {', '.join(self.shapes)}, of at least "
                   f"{min(_LEAST_CHUNKS[shape] for shape in self.shapes)} stages on each GPU; allow chain or more "
                   "chunks")
        if self.cut is not None:
            self._check_cut()
        if self.memory == "decide" and not set(_LEAST_CHUNKS) & set(self.shapes):
            refuse(f"memory is decide, which is of one GPU a stage, but shapes is {', '.join(self.shapes)}; allow "
                   "chain")
        self._check_choices()
        if self.co_shard and not {"groups", "m", "nn"} & set(self.shapes):
            refuse(f"co_shard is for the shapes groups, m and nn, but shapes is {', '.join(self.shapes)}; allow "
                   "groups")
        return self

    def _check_choices(self) -> None:
        if self.choices and not set(_LEAST_CHUNKS) & set(self.shapes):
            refuse(f"choices is of one GPU a stage, but shapes is {', '.join(self.shapes)}; allow chain")
        if "backward" in self.choices and set(self.backward) != {"full", "split"}:
            refuse(f"choices has backward, but backward is {', '.join(self.backward)} only; allow full and split")
        if "activations" in self.model_fields_set and "activations" not in self.choices:
            refuse("activations says what stages may do, but choices does not leave it open; add choices: "
                   "[activations]")

    def _check_cut(self) -> None:
        if not set(_LEAST_CHUNKS) & set(self.shapes):
            refuse(f"cut is of one GPU a stage, but shapes is {', '.join(self.shapes)}; allow "
                   f"{', '.join(_LEAST_CHUNKS)} or leave cut out")
        if self.memory == "decide":
            refuse("memory is decide, which chooses the cut of a chain itself; leave cut out, or memory")
        if self.co_shard:
            refuse("cut is of one GPU a stage, co_shard is for stages on groups of GPUs; leave one of them out")
