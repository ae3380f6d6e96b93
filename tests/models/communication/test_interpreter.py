"""Values on virtual ranks against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.communication import steps, tensor_parallel
from weft.communication import Builder, CommunicationError, data_parallel
from weft.models.communication.interpreter import dropped, random_values, results, run


def test_a_tensor_parallel_layer_is_the_layer() -> None:
    program = tensor_parallel()
    given = random_values(program)
    biased = given["x"] @ given["w"] + given["bias"]
    mask = dropped(np.arange(biased.size).reshape(biased.shape), 0.25, 3)
    assert results(program, run(program, given))["out"] == pytest.approx(biased * mask + given["residual"], abs=1e-12)


def test_dropout_keeps_the_mean_and_is_another_for_another_seed() -> None:
    places = np.arange(100_000)
    mask = dropped(places, 0.3, 1)
    assert mask.mean() == pytest.approx(1.0, abs=0.01)
    assert set(np.unique(mask)) == {0.0, 1 / 0.7}
    assert 0.3 < (dropped(places, 0.3, 2) != mask).mean() < 0.5
    assert (dropped(places[::7], 0.3, 1) == mask[::7]).all()


def test_adam_is_adam() -> None:
    program = data_parallel("adam", 2, (4, 6))
    given = [{**random_values(program, seed), "step": np.array(float(seed + 1))} for seed in range(3)]
    weight, mean, square = given[0]["weight"], given[0]["weight.mean"], given[0]["weight.square"]
    for number, entry in enumerate(given, 1):
        gradient = sum(entry["own gradient"]) / 2
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        weight = weight - 1e-3 * (mean / (1 - 0.9**number)) / (np.sqrt(square / (1 - 0.999**number)) + 1e-8)
    found = steps(program, given)
    assert found["next weight"] == pytest.approx(weight, abs=1e-12)
    assert found["next weight.square"] == pytest.approx(square, abs=1e-12)


def test_lamb_scales_adam_by_norms() -> None:
    program = data_parallel("lamb", 2, (4, 6))
    given = random_values(program)
    gradient = sum(given["own gradient"]) / 2
    mean = (0.9 * given["weight.mean"] + 0.1 * gradient) / (1 - 0.9**3)
    square = (0.999 * given["weight.square"] + 0.001 * gradient**2) / (1 - 0.999**3)
    direction = mean / (np.sqrt(square) + 1e-8) + 0.01 * given["weight"]
    ratio = np.linalg.norm(given["weight"]) / np.linalg.norm(direction)
    expected = given["weight"] - 1e-3 * ratio * direction
    assert results(program, run(program, given))["next weight"] == pytest.approx(expected, abs=1e-12)


def test_reduce_and_broadcast_are_an_all_reduce() -> None:
    step = Builder("step", 3)
    given = step.input("given", (5,), "local")
    program = step.build(step.all_reduce("one", given), step.broadcast("other", step.reduce("sum", given, 2), 2))
    found = results(program, run(program, random_values(program)))
    assert found["one"] == pytest.approx(found["other"], abs=1e-12)


def test_the_trust_of_a_weight_of_zeros_is_one() -> None:
    program = data_parallel("lamb", 2, (4,))
    given = {**random_values(program), "weight": np.zeros(4)}
    assert np.isfinite(results(program, run(program, given))["next weight"]).all()


@pytest.mark.parametrize(("value", "why"), [
    ({}, "no value is given for 'given'"), ({"given": [np.zeros(5)]}, "one value for each of 3 ranks"),
    ({"given": [np.zeros(4)] * 3}, "has the shape")])
def test_values_that_do_not_fit_are_refused(value: dict[str, object], why: str) -> None:
    step = Builder("step", 3)
    program = step.build(step.all_reduce("one", step.input("given", (5,), "local")))
    with pytest.raises(CommunicationError, match=why):
        run(program, value)
