"""Published parallelization plans of small models, each in a few calls of ``weft.plans``: Megatron-LM's tensor and
sequence parallelism, co-shard, the interlaced pipeline, 3F1B, and optimizer states in shards.

The models are small enough for virtual devices to compute them; what is open in a plan is for weft to find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.transform.backward import with_backward, with_update
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanProgram, ProgramBuilder

#: How a pipeline's micro-batches are ordered by hand; or not, for a search.
Schedule: TypeAlias = Literal["1f1b", "gpipe", "open"]


def decoder(batch: int = 4, sequence: int = 8, width: int = 16, heads: int = 4, *, layers: int = 1,
            vocabulary: int = 24, update: bool = False, itemsize: int = 8) -> PlanProgram:
    """Decoder layers with fused attention, and a loss of tokens; ``update``: with steps of Adam; ``itemsize``: bytes of
    a number."""
    b = ProgramBuilder("decoder", itemsize)
    x = b.add("embed", "embedding", "v+ m, b s -> b s m", [b.parameter("table", (vocabulary, width)),
                                                         b.input("tokens", (batch, sequence))])
    for i in range(layers):
        at = f"l{i}."
        y = b.add(f"{at}ln1", "norm", "b s m^, m^ -> b s m^", [x, b.parameter(f"{at}g1", (width,))], centred=False)
        q, k, v = (b.add(f"{at}{name}", "einsum", "b s m+, h d m+ -> b h s d",
                         [y, b.parameter(f"{at}w{name}", (heads, width // heads, width))]) for name in "qkv")
        y = b.add(f"{at}attend", "attention", "b h s^ d^, b h t^ d^, b h t^ e^ -> b h s^ e^", [q, k, v], causal=True)
        y = b.add(f"{at}out", "einsum", "b h+ s d+, m h+ d+ -> b s m",
                  [y, b.parameter(f"{at}wo", (width, heads, width // heads))])
        x = b.add(f"{at}add1", "add", "b s m, b s m -> b s m", [x, y])
        y = b.add(f"{at}ln2", "norm", "b s m^, m^ -> b s m^", [x, b.parameter(f"{at}g2", (width,))], centred=False)
        y = b.add(f"{at}up", "einsum", "b s m+, f m+ -> b s f", [y, b.parameter(f"{at}wu", (4 * width, width))])
        y = b.add(f"{at}act", "gelu", "b s f -> b s f", [y])
        y = b.add(f"{at}down", "einsum", "b s f+, m f+ -> b s m", [y, b.parameter(f"{at}wd", (width, 4 * width))])
        x = b.add(f"{at}add2", "add", "b s m, b s m -> b s m", [x, y])
    logits = b.add("head", "einsum", "b s m+, v m+ -> b s v", [x, b.parameter("wh", (vocabulary, width))])
    lost = b.add("entropy", "cross_entropy", "b s v^, b s -> b s", [logits, b.input("targets", (batch, sequence))])
    program = with_backward(b.build(b.add("loss", "einsum", "b+ s+ -> ", [lost], scale=1 / batch / sequence)))
    return with_update(program, "adam", rate=0.1) if update else program


def recycled(batch: int = 4, rows: int = 4, residues: int = 4, width: int = 8, *, blocks: int = 2,
             recycles: int = 2) -> PlanProgram:
    """Blocks of an alignment beside pairs of residues, as an Evoformer's, that run ``recycles`` times without gradients
    and then once with them, on the same weights: rows attend over residues, their outer products add to the pairs."""
    b = ProgramBuilder("recycled")
    weights = [{name: b.parameter(f"weights{i}.{name}", shape) for name, shape in (
        ("wq", (width, width)), ("wk", (width, width)), ("wv", (width, width)), ("up", (width, 2 * width)),
        ("down", (2 * width, width)), ("left", (width, 2)), ("right", (width, 2)), ("pair", (width, 2, 2)))}
        for i in range(blocks)]
    msa, pair = b.input("msa", (batch, rows, residues, width)), b.input("pairs", (batch, residues, residues, width))
    for run in range(recycles + 1):
        for i, weight in enumerate(weights):
            at = f"r{run}.b{i}." if run < recycles else f"b{i}."
            msa, pair = _block(b, at, msa, pair, weight)
            if run < recycles and i == blocks - 1:
                msa = b.detached(f"r{run}.b{i}.msa", "b r i m -> b r i m", msa)
                pair = b.detached(f"r{run}.b{i}.pairs", "b i j m -> b i j m", pair)
    losses = [b.add("loss.msa", "einsum", "b+ r+ i+ m+, b+ r+ i+ m+ -> ", [msa, msa], scale=0.1),
              b.add("loss.pairs", "einsum", "b+ i+ j+ m+, b+ i+ j+ m+ -> ", [pair, pair], scale=0.1)]
    return with_backward(b.build(*losses))


def _block(b: ProgramBuilder, at: str, msa: str, pair: str, weight: dict[str, str]) -> tuple[str, str]:
    q, k, v = (b.add(f"{at}{name}", "einsum", "b r i m+, m+ d -> b r i d", [msa, weight[f"w{name}"]])
               for name in "qkv")
    scores = b.add(f"{at}scores", "einsum", "b r i d+, b r j d+ -> b r i j", [q, k], scale=0.3)
    shares = b.add(f"{at}shares", "softmax", "b r i j^ -> b r i j^", [scores], over="j")
    mixed = b.add(f"{at}mixed", "einsum", "b r i j+, b r j+ d -> b r i d", [shares, v])
    msa = b.add(f"{at}attended", "add", "b r i m, b r i m -> b r i m", [msa, mixed])
    up = b.add(f"{at}up", "einsum", "b r i m+, m+ f -> b r i f", [msa, weight["up"]])
    act = b.add(f"{at}act", "gelu", "b r i f -> b r i f", [up])
    down = b.add(f"{at}down", "einsum", "b r i f+, f+ m -> b r i m", [act, weight["down"]])
    msa = b.add(f"{at}moved", "add", "b r i m, b r i m -> b r i m", [msa, down])
    left = b.add(f"{at}left", "einsum", "b r i m+, m+ c -> b r i c", [msa, weight["left"]])
    right = b.add(f"{at}right", "einsum", "b r j m+, m+ e -> b r j e", [msa, weight["right"]])
    outer = b.add(f"{at}outer", "einsum", "b r+ i c, b r+ j e -> b i j c e", [left, right], scale=0.25)
    added = b.add(f"{at}added", "einsum", "b i j c+ e+, m c+ e+ -> b i j m", [outer, weight["pair"]])
    return msa, b.add(f"{at}pair", "add", "b i j m, b i j m -> b i j m", [pair, added])


def numbers(program: PlanProgram, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Random values of all that a program is given; tokens are indices."""
    drawn = np.random.default_rng(seed)
    found: dict[str, NDArray[Any]] = {}
    for name, tensor in program.tensors.items():
        if tensor.source == "operator":
            continue
        whole = name in ("tokens", "targets")
        value = drawn.integers(0, 8, tensor.shape) if whole else (
            np.zeros(tensor.shape) if tensor.source == "state" else drawn.standard_normal(tensor.shape))
        found[name] = np.ones(()) if not tensor.shape else value
    return found


# -- plans -----------------------------------------------------------------------------------------------------------


def megatron(schedule: Schedule = "open") -> TransformPlan:
    """Heads and inner widths on four devices, norms and additions by tokens."""
    plan = TransformPlan(decoder(layers=2))
    plan.split("*.q *.k *.v *.attend *.out", "h", 4).split("*.up *.act *.down", "f", 4).split("*.ln? *.add?", "s", 4)
    return plan.assign("*", range(4))


def co_shard(schedule: Schedule = "open") -> TransformPlan:
    """Inner widths in four parts on one device, one after the other, recomputed; beside it another layer whole."""
    return TransformPlan(decoder(layers=2)).co_shard("l0.up l0.act l0.down", "f", 4).assign("*", 0)


def interlaced(schedule: Schedule = "open", devices: int = 4, program: PlanProgram | None = None,
               micro_batches: int = 4) -> TransformPlan:
    """Stages on devices of their own in a pipeline; the vocabulary's table and logits on all of them in between."""
    plan = TransformPlan(program or decoder(batch=8, layers=devices, vocabulary=64))
    every = range(devices)
    plan.split("embed head", "v", devices).assign("embed head", every)
    plan.split("embed head", "b", micro_batches, in_turn=True)
    stages = [f"l{i}.*" + (" entropy loss" if i == devices - 1 else "") for i in every]
    return plan.pipeline(stages, list(every), "b", micro_batches, schedule=schedule)


def piped(schedule: Schedule, devices: int, program: PlanProgram, micro_batches: int) -> TransformPlan:
    """The same model in a plain pipeline: the table on the first device, the logits on the last."""
    stages = [f"l{i}.*" for i in range(devices)]
    stages[0], stages[-1] = f"embed {stages[0]}", f"{stages[-1]} head entropy loss"
    return TransformPlan(program).pipeline(stages, list(range(devices)), "b", micro_batches, schedule=schedule)


def three_forwards(schedule: Schedule = "open", devices: int = 2) -> TransformPlan:
    """All passes of a block on a device of its own: two forwards without gradients, one with, one backward."""
    stages = [f"r?.b{i}.* b{i}.*" + (" loss.*" if i == devices - 1 else "") for i in range(devices)]
    return TransformPlan(recycled(batch=2 * devices, blocks=devices)).pipeline(stages, list(range(devices)), "b",
                                                                               2 * devices,
                                                                     schedule=schedule)


def sharded_optimizer(schedule: Schedule = "open") -> TransformPlan:
    """Four devices with a part of the batch each; every update on a quarter of its parameter and states."""
    program = decoder(layers=1, update=True)
    forwards = " ".join(one.name for one in program.operations if one.phase == "forward")
    plan = TransformPlan(program).split(forwards, "b", 4)
    for one in program.operations:
        if one.phase == "update":
            along = next(name for name in one.annotation.names if one.sizes[name] % 4 == 0)
            plan.split(one.name, along, 4)
    return plan.assign("*", range(4))


@dataclass(frozen=True)
class Published:
    """``plan``: what makes it, with its order open or by hand where it is a ``pipeline``. ``kinds``: the communications
    that must be in it, and no others."""

    title: str
    source: str
    plan: Callable[..., TransformPlan]
    kinds: frozenset[str]
    pipeline: bool


PLANS = {name: Published(title, source, plan, frozenset(kinds), plan in (interlaced, three_forwards))
         for name, title, source, plan, kinds in (
    ("megatron", "tensor parallelism with sequence parallelism", "Korthikanti et al., MLSys 2023", megatron,
     ("all_gather", "reduce_scatter")),
    ("co-shard", "co-shard", "Lin et al., OSDI 2024", co_shard, ()),
    ("interlaced", "interlaced pipeline", "Lin et al., OSDI 2024", interlaced, ("send", "all_reduce")),
    ("3f1b", "3F1B", "Lin et al., OSDI 2024", three_forwards, ("send",)),
    ("sharded-optimizer", "optimizer states in shards", "Rajbhandari et al., SC 2020", sharded_optimizer,
     ("reduce_scatter", "all_gather")),
)}
