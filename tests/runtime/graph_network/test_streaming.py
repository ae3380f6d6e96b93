from dataclasses import replace

import pytest
import torch

from tests.support.graph_networks import dense_pass, network_of, odd_graph, planned_pass
from weft.app.graph_network.run import streamed
from weft.models.graph_network.steps import Choice
from weft.runtime.graph_network.account import OverBudget
from weft.runtime.graph_network.kernels import Edges, ShapeChanged, gather, opened
from weft.runtime.graph_network.layers import LAYERS

CHOICES = [Choice(1), Choice(2), Choice(3, 2), Choice(5, fused=True, selective=True),
           *(pytest.param(choice, marks=pytest.mark.slow) for choice in (
               Choice(4, 4), Choice(6, selective=True), Choice(7, fused=True), Choice(8, 8)))]


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice.title)
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_and_gradients_are_those_of_the_whole_graph(kind: str, choice: Choice) -> None:
    graph, network = odd_graph(), network_of(kind, dropout=0.3)
    parameters, whole = (network.initial(0, torch.float64) for _ in range(2))
    steps, schedule, budget = planned_pass(network, parameters, graph, choice)
    with streamed(network, parameters, graph, steps, schedule, budget=budget) as run:
        for number in range(2):
            loss = run.run()
            y, expected = dense_pass(network, whole, graph, run.seeds(number))
            assert loss == pytest.approx(float(expected), rel=1e-12)
            torch.testing.assert_close(run.outputs, y, rtol=1e-12, atol=1e-12)
            for own, other in zip(parameters, whole, strict=True):
                for name, value in own.items():
                    torch.testing.assert_close(value.grad, other[name].grad, rtol=1e-12, atol=1e-12)
        assert run.account.peak <= budget


@pytest.mark.parametrize("kind", LAYERS)
def test_the_budget_is_what_is_needed(kind: str) -> None:
    """Less than a computation needs is refused; and the plan asks for little that is not used."""
    graph, network = odd_graph(), network_of(kind)
    parameters = network.initial(0, torch.float64)
    steps, schedule, budget = planned_pass(network, parameters, graph, Choice(2))
    with streamed(network, parameters, graph, steps, schedule, budget=budget) as run:
        run.adam()
        run.run()
        peak = run.account.peak
    assert 0.8 * budget <= peak <= budget
    with streamed(network, parameters, graph, steps, schedule, budget=peak - 8) as run, pytest.raises(OverBudget):
        run.run()


def test_training_stays_within_the_budget_and_equal_to_dense() -> None:
    graph, network = odd_graph(), network_of("gcn", dropout=0.5)
    parameters, whole = (network.initial(0, torch.float64) for _ in range(2))
    steps, schedule, budget = planned_pass(network, parameters, graph, Choice(3), slack=1.5)
    other = torch.optim.Adam([value for own in whole for value in own.values()], lr=0.01)
    with streamed(network, parameters, graph, steps, schedule, budget=budget) as run:
        optimizer = run.adam(0.01)
        for number in range(5):
            loss = run.run()
            _, expected = dense_pass(network, whole, graph, run.seeds(number))
            assert loss == pytest.approx(float(expected), rel=1e-10)
            optimizer.step()
            other.step()
        assert run.account.peak <= budget


def test_an_apply_edge_that_changes_shape_is_refused() -> None:
    layer = replace(LAYERS["gcn"](6, 8, 1), apply_edge=lambda p, source, target: source[:, :7])
    state = opened(layer, [torch.empty(3, 8)])
    one = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ShapeChanged, match=r"gives the shape \(1, 7\) for a chunk of 1 edges, it must be \(1, 8\)"):
        gather(layer, {}, state, torch.zeros(3, 8), None, Edges(one, one))
