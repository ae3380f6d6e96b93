"""Requests and their results, in order."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.train.requests import Requests


def test_results_come_in_the_order_of_requests_though_micro_batches_do_not() -> None:
    requests = Requests([torch.tensor([float(i)]) for i in range(7)], size=2, micro_batches=3)
    assert requests.steps == 2
    for step in (1, 0):
        for m in (2, 0, 1):
            requests.collect(step, m, 10 * requests.inputs(step, m))
    assert [float(result) for result in requests.results] == [10.0 * i for i in range(7)]


def test_missing_and_senseless_requests_are_refused() -> None:
    requests = Requests([torch.zeros(1)] * 3, size=2, micro_batches=1)
    requests.collect(0, 0, torch.zeros(2))
    with pytest.raises(ValueError, match="request 2 has no result yet"):
        _ = requests.results
    with pytest.raises(ValueError, match="2 requests gave 1 results"):
        requests.collect(1, 0, torch.zeros(1))
    with pytest.raises(ValueError, match="0 requests in micro-batches of 2"):
        Requests([], 2, 1)
