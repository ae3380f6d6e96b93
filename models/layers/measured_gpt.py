"""The GPT family: an embedding, equal transformer layers, and a head of final layer norm, logits and loss.

*Measured* (:mod:`weft.models.times.profiles`): the time of every operator's forward and whole backward, its weights,
  the memory it leaves allocated and the transient memory around it. *Modelled* from these:

- The split of a backward into input and weight gradient. A linear layer's two gradients are matrix products of one
  size: half of its backward each; likewise for the head, whose weight-gradient product at the MLP's rate is half of the
  measured time. Attention scores and context, softmax, dropout, GeLU and layer norm are all input gradient (the sums
  for a layer norm's two vectors ride along); the embedding's backward is all weight gradient.
- Activations kept for the backward: the memory that each operator leaves allocated, without the outputs that no
  backward reads (those of the attention score, which softmax replaces, and of the two linear layers before a dropout),
  plus the layer's input, minus its output, which is the next layer's input. This is 34 sbh + 5 as^2 b bytes a layer,
  the formula of Korthikanti et al. (Reducing Activation Recomputation in Large Transformer Models, section 4.1), to
  0.01 %.
- Tensors kept between the two gradients: input and output gradient of every linear layer.
- Workspace: the peak live memory over a layer's operators, less the kept memory. The transient memory of an operator is
  the allocator's ``reserved`` memory, so the sum over operators would count the same memory many times.
- The tied embedding: the head holds its own copy of the word embedding (as pipelines with both on different GPUs do),
  with gradient and optimizer state, even if both are on one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.models.hardware.devices import DEVICES
from weft.models.layers.costs import LayerCost, recomputed
from weft.models.spec.families import GptModel
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError, named_file, path_in
from weft.models.times.profiles import PROFILES, ProfileError, ProfileRow, load_profile, shipped_profile

DEFAULT_PROFILE = "gpt-1.3b-v100"


@dataclass(frozen=True, slots=True)
class _Role:
    """The model of an operator: the weight-gradient share of its backward, and whether any backward reads its
    output."""

    weight_share: float = 0.0
    output_is_read: bool = True


_LINEAR = 0.5
_EMBEDDING = {"encoder-embedding": _Role(weight_share=1.0)}
_TRANSFORMER = {
    "enc-1st-layernorm": _Role(),
    "enc-attention-qkv": _Role(_LINEAR),
    "enc-attention-score": _Role(output_is_read=False),
    "enc-attention-softmax": _Role(),
    "enc-attention-dropout": _Role(),
    "enc-attention-context": _Role(),
    "enc-attention-dense": _Role(_LINEAR, output_is_read=False),
    "enc-post-attention-dropout": _Role(),
    "enc-2nd-layernorm": _Role(),
    "enc-MLP-GEMM-1": _Role(_LINEAR),
    "enc-MLP-gelu": _Role(),
    "enc-MLP-GEMM-2": _Role(_LINEAR, output_is_read=False),
    "enc-post-MLP-dropout": _Role(),
}
_HEAD = {"final-layernorm": _Role(), "gpt-post-process": _Role(_LINEAR)}


@dataclass(frozen=True, slots=True)
class GptSizes:
    """The sizes a profile was measured at, read off its rows."""

    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    micro_batch_size: int


def gpt_layers(spec: Spec) -> list[LayerCost]:
    """The layers of a spec whose model is a GPT, embedding first.

    The number of layers is free; for sizes other than the profile's there are no measured costs, and nothing is scaled:
    :class:`~weft.models.spec.spec.SpecError` names the profile's sizes.
    """
    model = spec.model
    assert isinstance(model, GptModel)
    operators, name = _operators(spec)
    sizes = profile_sizes(operators, name)
    for field in ("hidden", "heads", "vocabulary", "sequence"):
        if getattr(model, field) != getattr(sizes, field):
            raise SpecError(f"{spec.where}: model.{field} is {getattr(model, field)}, but the costs in {name} are "
                            f"measured for {field} {getattr(sizes, field)}; model others (costs: roofline) or list "
                            "the layers with their costs under model.layers (only the number of layers is free)")
    if spec.run.micro_batch_size != sizes.micro_batch_size:
        raise SpecError(f"{spec.where}: micro_batch_size is {spec.run.micro_batch_size}, but the costs in {name} are "
                        f"measured for {sizes.micro_batch_size}")
    if spec.run.parameter_bytes != 2:
        raise SpecError(f"{spec.where}: parameter_bytes is {spec.run.parameter_bytes}, but the costs in {name} are "
                        "measured with 2 (fp16)")
    recompute = isinstance(spec.run, TrainingRun) and spec.run.recompute
    return _layers(operators, sizes, model.layers, recompute=recompute, training=spec.training is not None)


def profile_sizes(operators: Mapping[str, ProfileRow], where: str) -> GptSizes:
    """The sizes a GPT profile was measured at. Raises :class:`~weft.models.times.profiles.ProfileError` if a row is
    missing or the rows do not belong to one GPT in fp16."""
    for name in (*_EMBEDDING, *_TRANSFORMER, *_HEAD):
        if name not in operators:
            raise ProfileError(f"{where}: the operator {name!r} is missing")
    try:
        hidden = math.isqrt(operators["enc-attention-dense"].weights_bytes // 2)
        vocabulary = round(operators["gpt-post-process"].weights_bytes / (2 * hidden))
        sequence = round(operators["encoder-embedding"].weights_bytes / (2 * hidden)) - vocabulary
        micro_batch = round(operators["encoder-embedding"].output_bytes / (2 * hidden * sequence))
        heads = round(operators["enc-attention-score"].activation_bytes / (2 * sequence**2 * micro_batch))
    except ZeroDivisionError:
        raise ProfileError(f"{where}: the sizes of its operators are not those of a GPT in fp16") from None
    return GptSizes(hidden, heads, vocabulary, sequence, micro_batch)


def _operators(spec: Spec) -> tuple[Mapping[str, ProfileRow], str]:
    """The profile a spec names, and its name for messages."""
    name = spec.costs or DEFAULT_PROFILE
    if name in PROFILES:
        sizes = PROFILES[name]
        if spec.run.micro_batch_size not in sizes:
            raise SpecError(f"{spec.where}: micro_batch_size is {spec.run.micro_batch_size}, but the profile {name} is "
                            f"measured for {', '.join(map(str, sizes))}")
        return shipped_profile(name, spec.run.micro_batch_size), f"the profile {name}"
    if not name.endswith(".csv") and not path_in(spec, name).exists():
        raise SpecError(f"{spec.where}: costs is {name!r}, it must be a shipped profile ({', '.join(PROFILES)}) or the "
                        f"path of a profile CSV, or roofline or a device to model ({', '.join(DEVICES)})")
    path = named_file(spec, "costs", name)
    return load_profile(path, str(path)), str(path)


def _layers(operators: Mapping[str, ProfileRow], sizes: GptSizes, count: int, *, recompute: bool,
            training: bool) -> list[LayerCost]:
    state = 2 * sizes.micro_batch_size * sizes.sequence * sizes.hidden
    logits = 2 * sizes.micro_batch_size * sizes.sequence * sizes.vocabulary
    tokens = operators["encoder-embedding"].input_bytes

    def layer(name: str, roles: Mapping[str, _Role], input_bytes: int, output_bytes: int, saved: int) -> LayerCost:
        return _layer(name, [operators[operator] for operator in roles], list(roles.values()), input_bytes,
                      output_bytes, saved, training=training)

    # The embedding's weight gradient needs the tokens, its dropout's mask and the gradient of its output.
    mask = operators["encoder-embedding"].activation_bytes - state
    embedding = layer("embedding", _EMBEDDING, tokens, state, saved=tokens + mask + state)
    block = layer("block", _TRANSFORMER, state, state, saved=16 * state)  # qkv 1 + 3, dense 1 + 1, MLP 1 + 4 + 4 + 1
    head = layer("head", _HEAD, state, 0, saved=state + logits)
    if recompute:
        block = recomputed(block)
    tied = (("word embedding", sizes.vocabulary * sizes.hidden),)
    embedding, head = (replace(end, copied_parameters=tied) for end in (embedding, head))
    return [embedding, *(replace(block, name=f"layer{i}") for i in range(count)), head]


def _layer(name: str, operators: Sequence[ProfileRow], roles: Sequence[_Role], input_bytes: int, output_bytes: int,
           saved: int, *, training: bool) -> LayerCost:
    backward = round(sum(operator.backward for operator in operators), 9)
    weight_grad = round(sum(o.backward * role.weight_share for o, role in zip(operators, roles, strict=True)), 9)
    kept = [operator.activation_bytes if role.output_is_read else 0
            for operator, role in zip(operators, roles, strict=True)]
    kept[-1] -= output_bytes  # it is the next layer's input
    activations = input_bytes + sum(kept)
    return LayerCost(
        name=name,
        forward=round(sum(operator.forward for operator in operators), 9),
        backward=backward if training else 0.0,
        input_grad=round(backward - weight_grad, 9) if training else None,
        weight_grad=weight_grad if training else None,
        parameters=sum(operator.weights_bytes for operator in operators) // 2,
        activation_bytes=activations,
        weight_grad_bytes=saved,
        output_bytes=output_bytes,
        workspace_forward=max(0, _forward_peak(operators, roles, kept, input_bytes) - activations),
        workspace_backward=max(0, _backward_peak(operators, kept, input_bytes) - activations),
        workspace_weight_grad=max(operator.weights_bytes for operator in operators),  # a gradient before it is added
        input_bytes=input_bytes,
        working_set=max(o.input_bytes + o.activation_bytes + o.forward_reserved for o in operators),
    )


def _forward_peak(operators: Sequence[ProfileRow], roles: Sequence[_Role], kept: Sequence[int], live: int) -> int:
    """The peak live memory in a forward: tensors kept so far, a pending output, and the operator's own."""
    peak = passing = 0
    for operator, role, amount in zip(operators, roles, kept, strict=True):
        peak = max(peak, live + passing + operator.activation_bytes + operator.forward_reserved)
        live += amount
        passing = 0 if role.output_is_read else operator.activation_bytes
    return peak


def _backward_peak(operators: Sequence[ProfileRow], kept: Sequence[int], live: int) -> int:
    """The peak live memory in a backward, which frees kept tensors from the last operator to the first.

    An operator's backward may use the memory that its forward left reserved and additional reserved memory.
    """
    peak = 0
    for operator, amount in zip(operators, kept, strict=True):
        live += amount
        peak = max(peak, live + operator.forward_reserved + operator.backward_reserved)
    return peak
