"""Batches of other sizes and lengths than the example's run, and train as one process does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import found_by_parts, launch_forked, token_loss
from tests.support.shape_ranks import EPS, PARTS, SHAPES, batch, mean_of, model_of, sum_and_count

pytestmark = pytest.mark.slow

RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each rank found, by part."""
    return found_by_parts(RANKS, "tests.support.shape_ranks", tmp_path_factory.mktemp("shapes"), [*PARTS])


def require_equal(found: list[dict[str, Any]], count: int, loss: Any = token_loss, copies: int = 1) -> None:
    """What ranks found is what one process does with the whole batches."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPS)
    for number, (size, length) in enumerate(SHAPES[:count]):
        ids, labels = batch(size * copies, length, number)
        wanted = mean_of(loss, model(ids), labels)
        wanted.backward()  # type: ignore[no-untyped-call]
        assert [each["losses"][number] for each in found] == pytest.approx([wanted.item()] * RANKS, rel=1e-12)
        together = {name: g for each in found for name, g in each["gradients"][number].items()}
        assert together.keys() == dict(model.named_parameters()).keys()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            rounding = 1e-12 * max(float(parameter.grad.norm()), 1e-3)
            assert float((together[name] - parameter.grad).norm()) <= rounding, (number, name)
        optimizer.step()
        optimizer.zero_grad()
    ids, labels = batch(7, 9)
    output = model.eval()(ids)
    for each in found:
        assert each["evaluated"] == pytest.approx(mean_of(loss, output, labels).item(), rel=1e-12)
        assert all(torch.allclose(each["state"][name], value, rtol=1e-9, atol=1e-12)
                   for name, value in model.state_dict().items())
    results = [each["results"] for each in found if each["results"] is not None]
    assert len(results) == copies and all(torch.allclose(result, output, rtol=1e-9) for result in results)


@pytest.mark.parametrize("part", ["means", "counts", "by_modules", "copies"])
def test_batches_of_other_sizes_and_lengths_train_as_in_one_process(
        part: str, found: dict[str, list[dict[str, Any]]]) -> None:
    require_equal(found[part], len(found[part][0]["losses"]), sum_and_count if part == "counts" else token_loss,
                  2 if part == "copies" else 1)
    if part == "means":  # each shape was captured once: 2 x 2 and 2 x 1 texts, 4 x 2 short ones, 3 x 1, and so on
        assert [each["captures"] for each in found[part]] == [2 + 1 + 1 + 2 + 2] * RANKS


def test_batches_of_several_shapes_are_added_up_as_one(found: dict[str, list[dict[str, Any]]]) -> None:
    model = model_of()
    for shape in SHAPES[:3]:
        ids, labels = batch(*shape)
        (token_loss(model(ids), labels) / 3).backward()  # type: ignore[no-untyped-call]
    together = {name: g for each in found["added"] for name, g in each["gradients"].items()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert float((together[name] - parameter.grad).norm()) <= 1e-12 * max(float(parameter.grad.norm()), 1e-3)


def test_a_shape_that_becomes_another_graph_is_refused_on_all_ranks_and_training_goes_on(
        found: dict[str, list[dict[str, Any]]]) -> None:
    for each in found["refused"]:
        first, again, empty, floats, flat = each["said"]
        assert first == again and "micro-batches of ids (2, 5) cannot run, as rank 0 finds: the model computes" in first
        assert "in place of nothing" in first and empty == "the batch is empty: give at least one sample"
        assert "ids is (8, 12) of torch.float32, but the pipeline was made for tensors like (2, 12) of torch" in floats
        assert "ids is (96,) of torch.int64" in flat
    require_equal(found["refused"], 2)


def test_ranks_with_batches_of_two_shapes_end_with_one_sentence(tmp_path: Path) -> None:
    ended = launch_forked(RANKS, [sys.executable, "-m", "tests.support.shape_ranks", str(tmp_path), "torn"])
    for end in ended:
        assert end.code == 2 and "ids is (8, 7) of torch.int64 on rank 1, but (8, 9) of torch.int64 on rank 0" in (
            end.errors)
