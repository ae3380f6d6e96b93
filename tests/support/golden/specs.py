"""Golden runs of specs: placements and cuts listed and searched, training and inference, latencies, overlap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import weft
from tests.support.cut_specs import drawn_spec
from tests.support.golden.said import UNLIMITED, Run, digest, said, said_wide, starts
from tests.support.paths import SPECS
from weft.app.latency.serving import Serving
from weft.models.spec.spec import Spec, parse_spec

_SPEC = """
name: golden
model: {{family: {family}, {sizes}}}
costs: v100
cluster: {{gpus: 4, memory: {memory}, links: nvlink-v100}}
training: {{micro_batches: 8, micro_batch_size: 2}}
"""
_GPT = "layers: 12, hidden: 1024, heads: 16, vocabulary: 32000, sequence: 1024"
#: Two layers that a GPU computes together, or with data parallel copies: with collectives that may run beside.
_TOGETHER = """
name: small
model: {{family: gpt, layers: 1, hidden: 2048, heads: 16, sequence: 2048, vocabulary: 512}}
costs: roofline
cluster: {{gpus: 2, memory: 32 GiB, device: v100}}
training: {{micro_batches: 2, micro_batch_size: 2}}
placement: {{shapes: [{shape}]}}
"""
#: Stages of 13 and 9 in a chain, of 12 and 10 in a V, of 11 and 11 in a loop: each placement has its use.
_SERVED = json.dumps({
    "name": "uneven",
    "model": {"layers": [{"name": name, "forward": f"{time} ms", "activation_memory": "1 MiB", "output": 0}
                         for name, time in (("a", 9), ("b", 8), ("c", 2), ("d", 3))]},
    "cluster": {"gpus": 2, "memory": "2 GiB", "bandwidth": "10 GB/s", "latency": 0},
    "inference": {"micro_batches": 6, "micro_batch_size": 4}})


def runs() -> Iterator[tuple[str, Run]]:
    """By name."""
    for text in ("tiny.yaml", "gpt-1.3b-v100x4.yaml", "gpt-1.3b-inference.yaml"):
        yield f"spec {text}", partial(_planned, text)
    yield "family gpt", partial(_family, "16 GiB")
    yield "family gpt, tight", partial(_family, "4 GiB")
    for number, mode in ((1, "split"), (2, "full"), (3, "none")):
        yield f"cuts of drawn spec {number}, {mode}", partial(_cuts, number, mode)
    for shape in ("tensor", "data"):
        yield f"overlap of shape {shape}", partial(_overlap, shape)
    yield "front of a served spec", partial(_front, 2.0)
    yield "latency of gpt-1.3b-inference.yaml", _floor
    yield "estimate gpt-1.3b-v100x4.yaml", _estimated


def family(name: str, sizes: str, memory: str) -> Spec:
    """A spec of a model family with ``sizes``, on four V100 with ``memory``."""
    return parse_spec(_SPEC.format(family=name, sizes=sizes, memory=memory))


def _planned(spec: str, **options: Any) -> dict[str, Any]:
    return said(weft.solve(SPECS / spec, time_limit=UNLIMITED, effort=1.0, seed=4, **options))


def _family(memory: str) -> dict[str, Any]:
    return said(weft.solve(family("gpt", _GPT, memory), time_limit=UNLIMITED, effort=1.0, seed=5))


def _cuts(number: int, mode: Any) -> dict[str, Any]:
    found = weft.solve(drawn_spec(number, mode, shapes=["chain", "v"], chunks=2), time_limit=UNLIMITED, effort=0.5,
                       seed=6)
    return {**said(found), **{key: found.solver[key] for key in ("placement", "covered", "bound_over_placements")}}


def _overlap(shape: str) -> dict[str, Any]:
    found = weft.solve(parse_spec(_TOGETHER.format(shape=shape)), overlap="auto", time_limit=UNLIMITED, effort=0.3,
                       seed=7)
    return {**said_wide(found), "overlap": digest(json.dumps(found.solver["overlap"]))}


def _front(effort: float) -> dict[str, Any]:
    return _said_points(weft.latency(parse_spec(_SERVED), time_limit=UNLIMITED, effort=effort, seed=8))


def _floor() -> dict[str, Any]:
    return _said_points(weft.latency(SPECS / "gpt-1.3b-inference.yaml", period="80 ms", micro_batches=6,
                                     time_limit=UNLIMITED, effort=0.3, seed=9))


def _said_points(serving: Serving) -> dict[str, Any]:
    return {"points": [[point.placement, point.period, point.latency, point.bound, starts(point.schedule)]
                       for point in serving.points]}


def _estimated() -> dict[str, Any]:
    return {"estimate": digest(json.dumps(weft.estimate(SPECS / "gpt-1.3b-v100x4.yaml").to_json()))}
