"""Chains with memory to decide for tests: measured models, and single operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft.models.candidates.memory_candidates import STATE
from weft.models.times.profiles import PROFILES, ProfileRow, shipped_profile
from weft.solver.placement.memory.plan import ChainOperator, MemoryProblem, Rules

_LAYERS = {"gpt-1.3b-v100": (24, 0), "t5-770m-v100": (24, 24)}


def profile_chain(name: str, micro_batch_size: int, *, layers: tuple[int, int] | None = None,
                  rows: Mapping[str, ProfileRow] | None = None, state: int = STATE) -> list[ChainOperator]:
    """The chain of a shipped profile (a name in ``PROFILES``): its ``layers`` of encoder and decoder, default the
    model's own. ``rows`` replaces the profile's (:func:`wider_gpt`)."""
    rows = rows or profile_rows(name, micro_batch_size)
    encoder, decoder = layers or _LAYERS[name]
    order = list(rows)
    chain: list[ChainOperator] = []

    def add(names: Iterable[str], layer: str) -> None:
        chain.extend(_operator(rows[row], layer, state) for row in names)

    def block(prefix: str) -> list[str]:
        return [row for row in order if row.startswith(prefix) and not row.endswith("final-layernorm")]

    add(["encoder-embedding"], "embedding")
    for i in range(encoder):
        add(block("enc-"), f"encoder{i}")
    if decoder:
        add(["enc-final-layernorm", "decoder-embedding"], "bridge")
        for i in range(decoder):
            add(block("dec-"), f"decoder{i}")
    add([row for row in order if row in ("final-layernorm", "dec-final-layernorm") or row.endswith("post-process")],
        "head")
    return chain


def profile_rows(name: str, micro_batch_size: int) -> Mapping[str, ProfileRow]:
    """The rows of a shipped profile at any micro-batch size: measured ones; else times on the line through the two
    sizes measured next to it, and sizes in proportion."""
    sizes = sorted(PROFILES[name])
    if micro_batch_size in sizes:
        return shipped_profile(name, micro_batch_size)
    above = next((i for i, size in enumerate(sizes) if size > micro_batch_size), len(sizes) - 1)
    low, high = sizes[max(1, above) - 1], sizes[max(1, above)]
    share, factor = (micro_batch_size - low) / (high - low), micro_batch_size / high
    before, behind = shipped_profile(name, low), shipped_profile(name, high)

    def time(row: str, field: str) -> float:
        first, second = getattr(before[row], field), getattr(behind[row], field)
        return float(max(first, first + share * (second - first)))

    return {row: replace(op, forward=time(row, "forward"), backward=time(row, "backward"),
                         input_bytes=round(op.input_bytes * factor), output_bytes=round(op.output_bytes * factor),
                         activation_bytes=round(op.activation_bytes * factor)) for row, op in behind.items()}


def wider_gpt(rows: Mapping[str, ProfileRow], factor: float) -> dict[str, ProfileRow]:
    """The rows of a GPT whose hidden size is ``factor`` times that of ``rows``, with as many heads, by arithmetic.

    Matrix products grow with the square in time and weights, what works on scores (as many as before) does not grow,
    the rest is in proportion. Nothing of it is measured.
    """
    grown: dict[str, ProfileRow] = {}
    for name, op in rows.items():
        scores = any(word in name for word in ("softmax", "attention-dropout")) and "post" not in name
        square = any(word in name for word in ("qkv", "dense", "GEMM"))
        time = 1.0 if scores else factor**2 if square else factor
        held = 1.0 if scores or "score" in name or "post-process" in name else factor
        grown[name] = replace(op, forward=op.forward * time, backward=op.backward * time,
                              weights_bytes=round(op.weights_bytes * (factor**2 if square else factor)),
                              activation_bytes=round(op.activation_bytes * held),
                              output_bytes=round(op.output_bytes * held))
    return grown


def _operator(row: ProfileRow, layer: str, state: int) -> ChainOperator:
    # A dropout keeps a mask of one byte beside every two of its output; an embedding ends with one.
    masked = "dropout" in row.name or "embedding" in row.name
    own = row.activation_bytes * 2 // 3 if masked else row.activation_bytes
    return ChainOperator(
        f"{layer}.{row.name}", round(row.forward * 1e9), round(row.backward * 1e9), row.activation_bytes,
        row.output_bytes, max(0, row.output_bytes - own), state * row.weights_bytes,
        kind=row.name, layer=layer)


GIB = 2**30

GPT, T5 = "gpt-1.3b-v100", "t5-770m-v100"


def profiled(name: str, micro_batch_size: int, memory: float = 32, stages: int = 4,
              rules: Rules = "published") -> MemoryProblem:
    return MemoryProblem(tuple(profile_chain(name, micro_batch_size)), stages, round(memory * GIB), 12e9,
                         link_bandwidth=40e9, rules=rules)


def operator(name: str, *, kept: int = 0, resident: int = 0, forward: int = 10, output: int = 1, passing: int = 0,
              layer: str = "") -> ChainOperator:
    return ChainOperator(name, forward, 20, kept, output, passing, resident=resident, layer=layer)
