"""Chains with memory to decide for tests: measured models, and single operators."""

from __future__ import annotations

from tests.support.profile_chains import profile_chain
from weft.solver.placement.memory.plan import ChainOperator, MemoryProblem, Rules

GIB = 2**30

GPT, T5 = "gpt-1.3b-v100", "t5-770m-v100"


def profiled(name: str, micro_batch_size: int, memory: float = 32, stages: int = 4,
              rules: Rules = "published") -> MemoryProblem:
    return MemoryProblem(tuple(profile_chain(name, micro_batch_size)), stages, round(memory * GIB), 12e9,
                         link_bandwidth=40e9, rules=rules)


def operator(name: str, *, kept: int = 0, resident: int = 0, forward: int = 10, output: int = 1, passing: int = 0,
              layer: str = "") -> ChainOperator:
    return ChainOperator(name, forward, 20, kept, output, passing, resident=resident, layer=layer)
