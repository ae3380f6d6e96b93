"""Batched inference: requests in, results out in the order of the requests, whatever the order of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Requests:
    """``requests``, tensors of one shape, in micro-batches of ``size``; a plan runs ``micro_batches`` at a time.

    ``training = Training(..., inputs=requests.inputs, steps=requests.steps, collect=requests.collect)`` runs them, and
    :attr:`results` has the results, on the rank of the last stage. The last micro-batches are filled up with copies of
    the last request, whose results are dropped. With replicas, ``micro_batches`` counts those of all of them.
    """

    def __init__(self, requests: Sequence[Tensor], size: int, micro_batches: int) -> None:
        if not requests or size < 1 or micro_batches < 1:
            raise ValueError(f"{len(requests)} requests in micro-batches of {size}, {micro_batches} at a time: there "
                             "must be at least one of each")
        self._requests, self._size, self._micro_batches = requests, size, micro_batches
        self._found: dict[int, Tensor] = {}

    @property
    def steps(self) -> int:
        """The number of runs of the plan."""
        return -(-len(self._requests) // (self._size * self._micro_batches))

    def inputs(self, step: int, micro_batch: int) -> Tensor:
        """The requests of one micro-batch, stacked."""
        first, last = self._first(step, micro_batch), len(self._requests) - 1
        return torch.stack([self._requests[min(i, last)] for i in range(first, first + self._size)])

    def collect(self, step: int, micro_batch: int, output: Tensor) -> None:
        """Take the results of one micro-batch: one for each request along the first dimension."""
        if len(output) != self._size:
            raise ValueError(f"{self._size} requests gave {len(output)} results")
        first = self._first(step, micro_batch)
        self._found.update((first + i, result) for i, result in enumerate(output) if first + i < len(self._requests))

    @property
    def results(self) -> list[Tensor]:
        """The result of each request, in their order. Raises ``ValueError`` while some are missing."""
        missing = [i for i in range(len(self._requests)) if i not in self._found]
        if missing:
            raise ValueError(f"request {missing[0]} has no result yet")
        return [self._found[i] for i in range(len(self._requests))]

    def _first(self, step: int, micro_batch: int) -> int:
        return (step * self._micro_batches + micro_batch) * self._size
