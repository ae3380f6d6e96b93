"""A whole spec and its sections other than the model: names, units, defaults, examples and allowed values.

These classes are what ``weft schema`` prints. The ``model`` section is in :mod:`weft.models.spec.families` and
:mod:`weft.models.spec.model_sections`, what is put on which GPUs in :mod:`weft.models.spec.placement`; reading a file,
and errors that name its lines, are in :mod:`weft.models.spec.spec`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, PrivateAttr, Tag, model_validator

from weft.models.files.limits import MAX_BATCH, MAX_GPUS, MAX_MICRO_BATCHES
from weft.models.hardware.devices import DEVICES
from weft.models.spec.base import Section, refuse
from weft.models.spec.cluster import Cluster
from weft.models.spec.families import FAMILIES, FamilyModel
from weft.models.spec.fields import Lengths, Name
from weft.models.spec.model_sections import (
    CONFIG,
    EXPLICIT,
    FAMILY,
    GRAPH,
    GRAPH_NETWORK,
    ConfigModel,
    ExplicitModel,
    GraphModel,
    GraphNetworkModel,
    kind_of_section,
)
from weft.models.spec.phases import Phases
from weft.models.spec.placement import ParallelSection, PlacementSection


def _counted_otherwise(schema: dict[str, Any]) -> None:
    """The number of micro-batches is optional if the batch, or each one's length, is given."""
    schema["required"].remove("micro_batches")
    schema["anyOf"] = [{"required": [name]} for name in ("micro_batches", "global_batch_size", "lengths")
                       if name in schema["properties"]]


class _RunSection(Section):
    micro_batches: int = Field(ge=1, le=MAX_MICRO_BATCHES, description="Micro-batches in one step.", examples=[16])
    micro_batch_size: int = Field(default=1, ge=1, le=MAX_BATCH, description="Sequences in one micro-batch. Default 1.")
    global_batch_size: int | None = Field(
        default=None, ge=1, le=MAX_BATCH * MAX_MICRO_BATCHES, description="Sequences in one step, in place of "
        "micro_batches: so many times micro_batch_size. With several replicas of the whole pipeline give the share of "
        "one.", examples=[256])
    parameter_bytes: int = Field(
        default=2, ge=1, le=16, description="Bytes of one parameter as the layers compute with it. Default 2 (fp16 "
        "or bf16).")


    model_config = ConfigDict(json_schema_extra=_counted_otherwise)

    @model_validator(mode="before")
    @classmethod
    def _count_batch(cls, values: Any) -> Any:
        """A whole step's batch determines the number of micro-batches, which is set here."""
        if not isinstance(values, dict):
            return values
        batch, size = values.get("global_batch_size"), values.get("micro_batch_size", 1)
        count = values.get("micro_batches")
        if type(batch) is not int or type(size) is not int or batch < 1 or size < 1:
            return values  # missing, or faulty, which the entry's own check reports
        if "lengths" in values:
            refuse("lengths says how many micro-batches there are; leave global_batch_size out")
        if type(count) is int and batch != count * size:
            refuse(f"global_batch_size is {batch}, but {count} micro-batches of {size} are {count * size}; leave one "
                   "of them out")
        if batch % size:
            near = [f"{some}" for some in (batch // size * size, (batch // size + 1) * size) if some]
            refuse(f"global_batch_size is {batch}, which is no whole number of micro-batches of {size} "
                   f"(micro_batch_size); make it {' or '.join(near)}")
        rest = {name: value for name, value in values.items() if name != "global_batch_size"}
        return {"micro_batches": batch // size, **rest}


class TrainingRun(_RunSection):
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
    lengths: Lengths | None = Field(
        default=None, description="Tokens of each micro-batch's sequences, in the order in which they run, for "
        "micro-batches that differ: a list, or a file with the numbers. Costs are modelled at each length, how samples "
        "are packed into sequences is yours. Families gpt and moe. Default: all have the model's sequence.",
        examples=[[512, 2048, 1024, 512], "lengths.txt"])

    @model_validator(mode="before")
    @classmethod
    def _count_lengths(cls, values: Any) -> Any:
        """Lengths determine the number of micro-batches; those of a file once it is read."""
        if not isinstance(values, dict) or "lengths" not in values or "micro_batches" in values:
            return values
        listed = values["lengths"]
        return {**values, "micro_batches": max(1, len(listed)) if isinstance(listed, list) else 1}

    @model_validator(mode="after")
    def _check_lengths(self) -> TrainingRun:
        if isinstance(self.lengths, tuple) and len(self.lengths) != self.micro_batches:
            refuse(f"micro_batches is {self.micro_batches}, but lengths lists {len(self.lengths)}; leave micro_batches "
                   "out")
        return self


class Inference(_RunSection):
    """Forwards only; activations are given back when a block ends."""


class Spec(Section):
    """A model, a cluster and what to run on it: everything a schedule search needs to know."""

    name: Name = Field(default="model", description="Name of the problem, for tables and pictures. Default: the "
                      "file's, without its ending.", examples=["GPT-1.3B on 4 V100"])
    model: Annotated[Annotated[FamilyModel, Tag(FAMILY)] | Annotated[ExplicitModel, Tag(EXPLICIT)]
                     | Annotated[ConfigModel, Tag(CONFIG)] | Annotated[GraphModel, Tag(GRAPH)]
                     | Annotated[GraphNetworkModel, Tag(GRAPH_NETWORK)],
                     Discriminator(kind_of_section)] = Field(
        description=f"The model: of a family ({', '.join(FAMILIES)}), of a config.json, an operator graph, layer by "
        "layer, or a graph neural network (family: graph-network).")
    costs: Name | None = Field(
        default=None, description="Where the costs of a family or graph come from: roofline (modelled for "
        f"cluster.device), the name of a device to model ({', '.join(DEVICES)}), the name of a shipped profile, or the "
        "path of a profile: CSV, or measured operators (weft.operator-times/1, .json), relative to this file. Default: "
        "for a GPT without cluster.device gpt-1.3b-v100, else roofline.",
        examples=["gpt-1.3b-v100", "roofline", "h100", "profiles/my_gpt_mbs1.csv"])
    cluster: Cluster
    training: TrainingRun | None = Field(default=None, description="Give this or inference.")
    inference: Inference | None = Field(default=None, description="Give this or training.")
    parallel: ParallelSection | None = Field(
        default=None, description="A uniform grid of GPUs as frameworks are told it: tensor, pipeline, data and more, "
        "each a number or auto; or auto for all. With it the batch of training is that of all replicas.")
    placement: PlacementSection = PlacementSection()
    phases: Phases | None = Field(default=None, description="What changes while it trains, for weft family: any entry "
                                  "of the spec by its path.")

    #: The origin of the spec, for messages and for relative paths in it.
    _where: str = PrivateAttr("spec")
    _folder: Path | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _check(self) -> Spec:
        if (self.training is None) == (self.inference is None):
            refuse("give either training or inference" + ("" if self.training is None else ", not both"))
        self._check_devices()
        self._check_choices()
        self._check_grid()
        if self.phases is not None and self.training is None:
            refuse("phases are of a training, this is inference; leave them out")
        if isinstance(self.model, GraphNetworkModel):
            self._check_graph_network()
        if isinstance(self.model, ExplicitModel):
            if self.costs is not None:
                refuse("costs is for a model family; listed layers state their own costs")
            if self.placement.co_shard:
                refuse("placement.co_shard divides a model's operators, listed layers have none; leave it out")
            if self.training is not None:
                self._require_backwards(self.model)
        return self

    def _check_graph_network(self) -> None:
        if self.run.micro_batches != 1 or self.run.micro_batch_size != 1:
            refuse("a graph-network runs one pass over its graph at a time; give micro_batches: 1")
        if self.run.parameter_bytes not in (4, 8):
            refuse(f"parameter_bytes is {self.run.parameter_bytes}, but a graph-network computes with 4 (fp32) or 8 "
                   "(fp64)")
        if self.costs is not None or "placement" in self.model_fields_set:
            refuse("costs and placement are for models that are cut into stages; of a graph-network leave them out")
        if len({*self.cluster.devices}) > 1 or len(set(self.cluster.memory)) > 1 or self.cluster.speed is not None:
            refuse("cluster has GPUs that differ, but a graph-network is planned for equal ones")
        if self.cluster.device is None or self.cluster.host_bandwidth is None:
            refuse("a graph-network's chunks come from the host; give cluster.device (such as h100, or cpu) and "
                   "cluster.host_bandwidth (such as 12 GB/s)")

    def _check_choices(self) -> None:
        placement = self.placement
        if placement.choices and self.training is None:
            refuse("placement.choices is for training, this is inference: it keeps nothing and has no backward; leave "
                   "it out")
        if "activations" not in placement.choices:
            return
        if self.training is not None and self.training.recompute:
            refuse("training.recompute is true, but with placement.choices: [activations] that is decided stage by "
                   "stage; leave one of them out")
        if ("offload" in placement.activations and "activations" in placement.model_fields_set
                and self.cluster.host_bandwidth is None):
            refuse("placement.activations has offload, but there is no cluster.host_bandwidth; give it, or leave "
                   "offload out")

    def _check_grid(self) -> None:
        """A uniform grid divides the operators of a model in training, on GPUs that are alike."""
        if self.parallel is None:
            if self.cluster.gpus > MAX_GPUS:
                refuse(f"cluster.gpus is {self.cluster.gpus}, at most {MAX_GPUS} are placed one by one; divide them in "
                       "a uniform grid (parallel: auto)")
            return
        run = self.training
        if run is None:
            refuse("parallel is for training; leave it out")
        if isinstance(self.model, ExplicitModel | GraphModel):
            refuse("parallel divides the layers of a decoder (family gpt or moe, or a config.json); leave it out")
        if not self.cluster.is_plain or self.cluster.device is None or len(set(self.cluster.memory)) > 1:
            refuse("parallel is for GPUs of one kind; name it (cluster.device, such as h100)")
        if run.recompute or run.optimizer != "adam" or run.lengths is not None:
            entry = "recompute" if run.recompute else "lengths" if run.lengths is not None else "optimizer"
            refuse(f"training.{entry} is not for a uniform grid" + ("; give parallel.recompute: full"
                   if run.recompute else "; leave it out"))

    def _check_devices(self) -> None:
        """Costs of one kind of GPU do not apply to others."""
        named = sorted({device for device in self.cluster.devices if device is not None})
        if len(named) < 2:
            return
        if isinstance(self.model, ExplicitModel) and self.cluster.speed is None:
            refuse(f"cluster.device lists {' and '.join(named)}, but listed layers state one time each; say how fast "
                   "each GPU is relative to that (cluster.speed, such as [1, 1, 2, 2])")
        if self.costs not in (None, "roofline"):
            refuse(f"costs is {self.costs!r:.60}, of one kind of GPU, but cluster.device lists {' and '.join(named)}; "
                   "leave costs out to model each, or say how fast each GPU is relative to it (cluster.speed) beside "
                   "bandwidth in place of device")

    def _require_backwards(self, model: ExplicitModel) -> None:
        for i, layer in enumerate(model.layers):
            if layer.backward is None and layer.input_grad is None:
                refuse(f"model.layers[{i}].backward is missing: training needs it, or input_grad and weight_grad")
            if layer.input_grad is None and self.placement.backward == ("split",):
                refuse(f"model.layers[{i}].input_grad is missing: a split backward needs input_grad and weight_grad")

    @property
    def run(self) -> TrainingRun | Inference:
        """The section of the run: ``training`` or ``inference``."""
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
        """The base folder of relative paths in the spec (``None``: the working folder)."""
        return self._folder
