"""Random numbers of a captured model are those of the uncut graph, however it is cut and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from tests.support.uncut import Whole
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import CapturedCut
from weft.runtime.captured.division import evaluated
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.memory.treatment import treated
from weft.runtime.captured.purity import Purity
from weft.runtime.train.moment import Moment, Seeded
from weft.runtime.train.stage import StageRunner

functional = nn.functional
SEED, STEPS, MICRO_BATCHES = 11, 2, 3


class Noisy(nn.Module):
    """Dropouts of several kinds, attention with dropout, noise."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.attend, self.drop = nn.Linear(width, 3 * width), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.layers[0](x))
        q, k, v = self.attend(x).chunk(3, -1)
        x = x + functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], dropout_p=0.2)[:, 0]
        x = x + 0.1 * torch.randn_like(x) * torch.bernoulli(torch.full_like(x, 0.5))
        x = functional.rrelu(self.layers[1](x), training=True)
        x = functional.dropout1d(x, 0.4, training=True)
        return functional.alpha_dropout(self.layers[2](x), 0.2, training=True)


def batch(step: int, micro_batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + micro_batch)
    return torch.randn(2, 5, 8, dtype=torch.float64, generator=generator)


def model() -> Noisy:
    torch.manual_seed(0)
    return Noisy().double()


def uncut(captured: Captured) -> list[dict[str, Tensor]]:
    """The gradients of each step by the reference."""
    whole, found = Whole(captured, SEED), []
    for step in range(STEPS):
        for m in range(MICRO_BATCHES):
            whole(step, m, (batch(step, m),)).square().mean().backward()
        found.append({name: g for name, p in captured.model.named_parameters() if (g := p.grad) is not None})
        captured.model.zero_grad()
    return found


def by_stages(captured: Captured, places: Sequence[int], order: Sequence[int], split: bool, recompute: bool,
              first: int = 0) -> list[Mapping[str, Tensor]]:
    """The same, stage by stage; micro-batches forward in this ``order``, and back in the other."""
    cut = CapturedCut(captured, places, Purity(captured, light=split)).stages()
    runners = {s: StageRunner(module, split=split, recompute=recompute, constant=() if s else (0,),
                              moment=Moment(SEED, 0, first)) for s, module in cut.modules.items()}
    found: list[Mapping[str, Tensor]] = []
    for step in range(STEPS):
        values: dict[tuple[int, str], Tensor] = {}
        for runner in runners.values():
            runner.moment.step = step
        for m in order:
            torch.manual_seed(step)  # what is drawn elsewhere changes nothing
            values[m, cut.ports[0].takes[0]] = batch(step, first + m)
            for s, runner in runners.items():
                ys = runner.forward(m, *(values[m, name] for name in cut.ports[s].takes))
                values.update(zip([(m, name) for name in cut.ports[s].gives], ys, strict=True))
        for m in reversed(order):
            y = values[m, cut.ports[len(runners) - 1].gives[0]]
            gradients = {cut.ports[len(runners) - 1].gives[0]: 2 * y / y.numel()}
            for s, runner in reversed(runners.items()):
                if recompute:
                    runner.recompute(m)
                back = (runner.input_grad if split else runner.backward)(
                    m, *(gradients.get(name) for name in cut.ports[s].gives))
                for name, gradient in zip(cut.ports[s].takes, back, strict=True):
                    if gradient is not None:
                        gradients[name] = gradients[name] + gradient if name in gradients else gradient
                if split:
                    runner.weight_grad(m)
        found.append({name: p.grad for name, p in captured.model.named_parameters() if p.grad is not None})
        captured.model.zero_grad()
    for runner in runners.values():
        runner.close()
    return found


@pytest.fixture(scope="module")
def captured() -> Captured:
    return Captured.of(model(), (batch(0, 0),))


@pytest.mark.parametrize(("cuts", "order", "split", "recompute"), [
    ((), (0, 1, 2), False, False), ((1,), (2, 0, 1), False, True), ((1, 2), (0, 1, 2), True, False),
    ((2,), (1, 0, 2), True, True)])
def test_any_cut_and_order_draws_what_the_uncut_graph_draws(captured: Captured, cuts: tuple[int, ...],
                                                            order: tuple[int, ...], split: bool,
                                                            recompute: bool) -> None:
    wanted = uncut(captured)
    places = [len(captured.calls) * cut // 3 for cut in cuts]
    found = by_stages(captured, places, order, split, recompute)
    for step in range(STEPS):
        for name, gradient in wanted[step].items():
            assert float((found[step][name] - gradient).norm() / gradient.norm()) <= 1e-12


@pytest.mark.parametrize("split", [False, True])
def test_operators_that_are_recomputed_draw_the_same_again(captured: Captured, split: bool) -> None:
    decisions = Decisions.made(captured, Purity(captured), {node.name: "recompute" for node in captured.calls})
    wanted = uncut(captured)
    found = by_stages(treated(captured, decisions, [batch(0, 0)]), [len(captured.calls) // 2], (1, 2, 0), split, False)
    for step in range(STEPS):
        for name, gradient in wanted[step].items():
            assert float((found[step][name] - gradient).norm() / gradient.norm()) <= 1e-12


def test_steps_and_micro_batches_differ_and_replicas_count_on(captured: Captured) -> None:
    whole, x = Whole(captured, SEED), batch(0, 0)
    results = [whole(step, m, (x,)) for step in (0, 1) for m in (0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])
    assert torch.equal(whole(0, 1, (x,)), results[1])
    module = CapturedCut(captured, ()).stages().modules[0]
    runner = StageRunner(module, moment=Moment(SEED, 1, 1), constant=(0,))
    assert torch.equal(runner.infer_of(0, x)[0], results[3])


def test_what_draws_is_seeded_and_evaluation_has_plain_operators(captured: Captured) -> None:
    drawing = [part for part in CapturedCut(captured, ()).stages().modules[0].modules() if isinstance(part, Seeded)]
    assert len(drawing) == 7 and len({part.number for part in drawing}) == 7
    plain = evaluated(CapturedCut(captured, ()).stages(plain=True).modules[0])
    assert not any(isinstance(part, Seeded) for part in plain.modules())
    still = model()
    still.drop.p = 0.0
    assert not any(isinstance(part, Seeded) for part in CapturedCut(Captured.of(still.drop, (batch(0, 0),)),
                                                                    ()).stages().modules[0].modules())
