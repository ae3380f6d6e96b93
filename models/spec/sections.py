"""The sections of a spec file as pydantic models: names, units, defaults, examples and what is allowed.

These classes are what ``weft schema`` prints. Reading a file, and errors that name its lines, are in
:mod:`weft.models.spec.spec`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from weft.models.files.limits import (
    MAX_BATCH,
    MAX_GPUS,
    MAX_LAYERS,
    MAX_MICRO_BATCHES,
    MAX_NAME,
    MAX_SEQUENCE,
    PRINTABLE,
)
from weft.models.hardware.devices import DEVICES
from weft.models.spec.base import Section, refuse
from weft.models.spec.families import FAMILIES, FamilyModel, GptModel
from weft.models.spec.quantities import (
    BANDWIDTH,
    BYTES,
    LARGEST,
    SECONDS,
    SOME_BYTES,
    SOME_SECONDS,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)

__all__ = [
    "CONFIG", "EXPLICIT", "FAMILY", "GRAPH", "Cluster", "ConfigModel", "ExplicitModel", "GptModel", "GraphModel",
    "Inference", "LayerSpec", "Placement", "Spec", "Training",
]

#: The kinds of ``model`` section; pydantic puts these tags into error locations.
FAMILY, EXPLICIT, CONFIG, GRAPH = "family:", "layers:", "config:", "graph:"

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
Bytes: TypeAlias = Annotated[int, BeforeValidator(parse_bytes), WithJsonSchema(BYTES.schema)]
Seconds: TypeAlias = Annotated[float, BeforeValidator(parse_seconds), WithJsonSchema(SECONDS.schema)]
SomeSeconds: TypeAlias = Annotated[float, BeforeValidator(SOME_SECONDS.parse), WithJsonSchema(SOME_SECONDS.schema)]
Bandwidth: TypeAlias = Annotated[float, BeforeValidator(parse_bandwidth), WithJsonSchema(BANDWIDTH.schema)]
Shape: TypeAlias = Literal["chain", "v", "loop", "groups", "tensor", "m", "nn", "k", "x"]
BackwardMode: TypeAlias = Literal["full", "split"]


def _bytes_each(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return (round(SOME_BYTES.parse(value)),)
    if not 1 <= len(value) <= MAX_GPUS:
        refuse(f"lists {len(value)} amounts, it must be one amount, or a list of 1 to {MAX_GPUS}")
    amounts = []
    for i, item in enumerate(value):
        try:
            amounts.append(round(SOME_BYTES.parse(item)))
        except ValueError as error:
            refuse(f"entry {i} is {item!r:.60}, {error}")
    return tuple(amounts)


BytesEach: TypeAlias = Annotated[tuple[int, ...], BeforeValidator(_bytes_each), WithJsonSchema(
    {"anyOf": [*SOME_BYTES.schema["anyOf"],
               {"type": "array", "minItems": 1, "maxItems": MAX_GPUS, "items": SOME_BYTES.schema}]})]


class LayerSpec(Section):
    """One layer with its costs for one micro-batch; ``repeat`` puts several equal ones in a row."""

    name: Name = Field(description="Name of the layer; with repeat, '.0', '.1', ... are added.", examples=["block"])
    repeat: int = Field(default=1, ge=1, le=MAX_LAYERS, description="How many of these follow each other.")
    forward: SomeSeconds = Field(description="Time of the forward (seconds, or text with a unit); at least 1 ns.",
                             examples=["4.1 ms"])
    backward: SomeSeconds | None = Field(
        default=None, description="Time of the whole backward, at least 1 ns. Training needs this, or both input_grad "
        "and weight_grad.", examples=["8.2 ms"])
    input_grad: Seconds | None = Field(default=None, description="Time of the input-gradient part of the backward.",
                                       examples=["4.3 ms"])
    weight_grad: Seconds | None = Field(default=None, description="Time of the weight-gradient part of the backward.",
                                        examples=["3.9 ms"])
    activation_memory: Bytes = Field(
        default=0, description="What one micro-batch keeps from its forward for its backward, the layer's input "
        "included (bytes, or text with a unit).", examples=["776 MiB"])
    weight_grad_memory: Bytes | None = Field(
        default=None, description="What is still kept between input_grad and weight_grad: the inputs of linear "
        "layers and the gradients of their outputs. Default: all of activation_memory.", examples=["128 MiB"])
    workspace: Bytes = Field(
        default=0, description="Needed only while a block of this layer runs.", examples=["512 MiB"])
    weights: Bytes | None = Field(
        default=None, description="Size of the parameters. Give this or parameters; default none.", examples=["96 MiB"])
    parameters: int | None = Field(default=None, ge=0, le=LARGEST, description="Number of parameters.",
                                   examples=[50331648])
    output: Bytes = Field(
        default=0, description="What the next layer gets, and the size of its gradient.", examples=["8 MiB"])

    @model_validator(mode="after")
    def _check(self) -> LayerSpec:
        if (self.input_grad is None) != (self.weight_grad is None):
            refuse("input_grad and weight_grad come together, one of them is missing")
        if self.backward is not None and self.input_grad is not None:
            refuse("give either backward, or input_grad and weight_grad, not both")
        if self.input_grad is not None and round(self.input_grad + (self.weight_grad or 0), 9) <= 0:
            refuse("input_grad and weight_grad must be greater than 0 together (at least 1 ns)")
        if self.weights is not None and self.parameters is not None:
            refuse("give either weights (their size) or parameters (their number), not both")
        return self


class ExplicitModel(Section):
    """A chain of layers, each with its costs."""

    layers: tuple[LayerSpec, ...] = Field(strict=False, min_length=1, description="The layers, first to last.")

    @model_validator(mode="after")
    def _check(self) -> ExplicitModel:
        count = sum(layer.repeat for layer in self.layers)
        if count > MAX_LAYERS:
            refuse(f"layers are {count} with their repeats, at most {MAX_LAYERS} are supported")
        names = [layer.name for layer in self.layers]
        for name in names:
            if names.count(name) > 1:
                refuse(f"layers: the name {name!r} is used twice")
        return self


class ConfigModel(Section):
    """A model whose sizes a Hugging Face config.json tells."""

    config: Name = Field(description="Path of the config.json, relative to this file; its model_type says the family.",
                         examples=["models/gpt2/config.json"])
    sequence: int | None = Field(default=None, ge=1, le=MAX_SEQUENCE, description="Tokens in a sequence (for an "
                                 "encoder and decoder, of each). Default: the most that the model was made for.")


class GraphModel(Section):
    """A model of one's own as an operator graph, such as one captured from PyTorch; its layers run in order."""

    graph: Name = Field(description="Path of a weft.operators/1 file, relative to this file: one micro-batch of the "
                        "size it was made for.", examples=["my_model.json"])


def _kind_of_model(value: Any) -> str | None:
    """Which kind a ``model`` section is meant to be: a config, explicit where it lists layers, else of a family."""
    if isinstance(value, Section):
        return {ExplicitModel: EXPLICIT, ConfigModel: CONFIG, GraphModel: GRAPH}.get(type(value), FAMILY)
    return kind_of_model(value)


def kind_of_model(value: object) -> str:
    """Which kind of ``model`` section a mapping is meant to be."""
    if not isinstance(value, dict) or "family" in value:
        return FAMILY
    for key, kind in (("config", CONFIG), ("graph", GRAPH)):
        if key in value:
            return kind
    return EXPLICIT if not isinstance(value.get("layers"), int) else FAMILY


class Cluster(Section):
    """The GPUs and what joins them."""

    gpus: int = Field(ge=1, le=MAX_GPUS, description="Number of GPUs.", examples=[4])
    memory: BytesEach = Field(description="Memory of each GPU (bytes, or text with a unit), or a list with one entry "
                              "for each.", examples=["32 GiB", ["32 GiB", "32 GiB", "16 GiB", "16 GiB"]])
    reserve: Bytes = Field(
        default=1024**3, description="Kept free on every GPU for the framework: CUDA context, communication buffers, "
        "fragmentation. Default 1 GiB.", examples=["1 GiB"])
    links: Literal["nvlink-v100", "network-v100"] | None = Field(
        default=None, description="Measured transfer times by size: nvlink-v100 (two V100 of one machine) or "
        "network-v100 (V100 of two machines). Several GPUs need this, bandwidth or device.")
    bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth between any two GPUs of a machine (bytes per second, or text with a "
        "unit). Default: what device has by its data sheet.", examples=["36 GB/s"])
    latency: Seconds | None = Field(
        default=None, description="Time that a transfer of any size takes at least, within a machine. Default: 0 with "
        "bandwidth, else what device has.", examples=["10 us"])
    device: Name | None = Field(
        default=None, description=f"What the GPUs are, for modelled costs and links: {', '.join(DEVICES)}.",
        examples=["a100-80gb"])
    gpus_per_machine: int | None = Field(
        default=None, ge=1, le=MAX_GPUS, description="GPUs in one machine: GPU 0 and so many from there on stand in "
        "the first, and so on. Transfers and collectives between machines go over the network. Default: all GPUs are "
        "in one.", examples=[8])
    machine_bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth between GPUs of two machines (bytes per second, or text with a unit). "
        "Default: the measured times of network-v100 where links is given, else what device has.",
        examples=["100 Gbit/s"])
    machine_latency: Seconds | None = Field(
        default=None, description="Time that a transfer of any size between machines takes at least. Default: 0 with "
        "machine_bandwidth, else what device has.", examples=["30 us"])
    host_bandwidth: Bandwidth | None = Field(
        default=None, description="Bandwidth of copies between each GPU and the host's memory, both ways at once "
        "(bytes per second, or text with a unit). With it, placement.memory: decide may offload activations.",
        examples=["12 GB/s"])

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str | None) -> str | None:
        if value is not None and value not in DEVICES:
            raise ValueError(f"it must be one of {', '.join(DEVICES)}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        if len(self.memory) not in (1, self.gpus):
            refuse(f"memory lists {len(self.memory)} GPUs, but gpus is {self.gpus}")
        if self.links is not None and (self.bandwidth is not None or self.latency is not None):
            refuse("give either links (measured) or bandwidth and latency, not both")
        if self.latency is not None and self.bandwidth is None and self.device is None:
            refuse("latency needs bandwidth or device beside it")
        if self.gpus > 1 and self.links is None and self.bandwidth is None and self.device is None:
            refuse("with several GPUs, give links (such as nvlink-v100), bandwidth (such as 36 GB/s) or a device "
                   "whose bandwidth is known (such as h100)")
        self._check_machines()
        return self

    def _check_machines(self) -> None:
        given = next((name for name in ("machine_bandwidth", "machine_latency") if getattr(self, name) is not None), "")
        if given and self.gpus_per_machine is None:
            refuse(f"{given} is between machines; say how many GPUs one has (gpus_per_machine)")
        if self.machine_latency is not None and self.machine_bandwidth is None and (
                self.links is not None or self.device is None):
            refuse("machine_latency needs machine_bandwidth beside it")
        if (self.machines > 1 and self.machine_bandwidth is None and self.links is None
                and self.device is None):
            refuse(f"{self.gpus} GPUs stand in {self.machines} machines (gpus_per_machine is {self.gpus_per_machine}); "
                   "give the bandwidth between them (machine_bandwidth, such as 100 Gbit/s) or a device whose network "
                   "is known (such as h100)")

    @property
    def machines(self) -> int:
        """How many machines the GPUs stand in."""
        return -(-self.gpus // (self.gpus_per_machine or self.gpus))


class _Run(Section):
    micro_batches: int = Field(ge=1, le=MAX_MICRO_BATCHES, description="Micro-batches in one step.", examples=[16])
    micro_batch_size: int = Field(default=1, ge=1, le=MAX_BATCH, description="Sequences in one micro-batch. Default 1.")
    parameter_bytes: int = Field(
        default=2, ge=1, le=16, description="Bytes of one parameter as the layers compute with it. Default 2 (fp16 "
        "or bf16).")


class Training(_Run):
    """One training step: forward and backward of every micro-batch, then the optimizer."""

    recompute: bool = Field(
        default=False, description="Keep only each layer's input and run its forward again in the backward (for a "
        "family, all layers but embeddings and losses). Default false.")
    optimizer: Literal["adam", "adama"] = Field(
        default="adam", description="adam: gradients are added up over the step. adama: each is folded into Adam's "
        "moments as it comes and freed (Adam accumulation; no clipping by norm). Default adam.")
    gradient_bytes: int = Field(default=2, ge=0, le=16, description="Bytes of one parameter's gradient. Default 2.")
    optimizer_bytes_per_parameter: int = Field(
        default=12, ge=0, le=64, description="Optimizer state for one parameter. Default 12: mixed-precision Adam, an "
        "fp32 master copy and two fp32 moments.")


class Inference(_Run):
    """Forwards only; activations are given back when a block ends."""


class Placement(Section):
    """Which placements to search."""

    shapes: tuple[Shape, ...] = Field(
        default=("chain", "v", "loop", "groups", "tensor", "m", "nn", "k"), strict=False, min_length=1, description=(
            "One GPU a stage: chain: one stage a GPU. v: two, down the GPUs and back up. loop: two, twice down the "
            "GPUs. GPUs that compute together, for a family or config on a known device: groups: a chain of stages on "
            "groups of GPUs. tensor: all GPUs compute every layer. m: they compute the embedding and the head, and are "
            "a chain for the rest, beside v or loop also one of two chunks a group. nn: the same with an embedding "
            "inside, between encoder and decoder. k: towers beside each other, and all GPUs compute what joins them. "
            "x: two replicas of the model, one down the GPUs and one up. Default all but x."))
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

    @model_validator(mode="after")
    def _check(self) -> Placement:
        if self.memory == "decide" and not {"chain", "v", "loop"} & set(self.shapes):
            refuse(f"memory is decide, which is of one GPU a stage, but shapes is {', '.join(self.shapes)}; allow "
                   "chain")
        if self.co_shard and not {"groups", "m", "nn"} & set(self.shapes):
            refuse(f"co_shard is for the shapes groups, m and nn, but shapes is {', '.join(self.shapes)}; allow "
                   "groups")
        return self


class Spec(Section):
    """A model, a cluster and what to run on it: everything a schedule search needs to know."""

    name: Name = Field(description="Name of the problem, for tables and pictures.", examples=["GPT-1.3B on 4 V100"])
    model: Annotated[Annotated[FamilyModel, Tag(FAMILY)] | Annotated[ExplicitModel, Tag(EXPLICIT)]
                     | Annotated[ConfigModel, Tag(CONFIG)] | Annotated[GraphModel, Tag(GRAPH)],
                     Discriminator(_kind_of_model)] = Field(
        description=f"The model: of a family ({', '.join(FAMILIES)}), of a config.json, an operator graph, or layer by "
        "layer.")
    costs: Name | None = Field(
        default=None, description="Where the costs of a family or graph come from: roofline (modelled for "
        f"cluster.device), the name of a device to model ({', '.join(DEVICES)}), the name of a shipped profile, or the "
        "path of a profile: CSV, or measured operators (weft.operator-times/1, .json), relative to this file. Default: "
        "for a GPT without cluster.device gpt-1.3b-v100, else roofline.",
        examples=["gpt-1.3b-v100", "roofline", "h100", "profiles/my_gpt_mbs1.csv"])
    cluster: Cluster
    training: Training | None = Field(default=None, description="Give this or inference.")
    inference: Inference | None = Field(default=None, description="Give this or training.")
    placement: Placement = Placement()

    #: Where the spec was read, for messages and for relative paths in it.
    _where: str = PrivateAttr("spec")
    _folder: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check(self) -> Spec:
        if (self.training is None) == (self.inference is None):
            refuse("give either training or inference" + ("" if self.training is None else ", not both"))
        if isinstance(self.model, ExplicitModel):
            if self.costs is not None:
                refuse("costs is for a model family; listed layers state their own costs")
            if self.placement.co_shard:
                refuse("placement.co_shard divides a model's operators, listed layers have none; leave it out")
            if self.training is not None:
                self._require_backwards(self.model)
        return self

    def _require_backwards(self, model: ExplicitModel) -> None:
        for i, layer in enumerate(model.layers):
            if layer.backward is None and layer.input_grad is None:
                refuse(f"model.layers[{i}].backward is missing: training needs it, or input_grad and weight_grad")
            if layer.input_grad is None and self.placement.backward == ("split",):
                refuse(f"model.layers[{i}].input_grad is missing: a split backward needs input_grad and weight_grad")

    @property
    def run(self) -> Training | Inference:
        """The section that says how much runs: ``training`` or ``inference``."""
        run = self.training or self.inference
        assert run is not None  # the validator above
        return run

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one step."""
        return self.run.micro_batches

    @property
    def where(self) -> str:
        """The file this was read from, for messages."""
        return self._where

    @property
    def folder(self) -> Path | None:
        """The folder that relative paths in the spec start from (``None``: the working folder)."""
        return self._folder
