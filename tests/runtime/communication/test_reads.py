"""When modules wait for the parameters that they read."""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from weft.runtime.communication.reads import Readers, require_unread


class Tied(nn.Module):
    """Two layers, an attention that reads its projection without calling it, and a layer called at times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 1)
        self.rare = nn.Linear(4, 4)

    def forward(self, x: Tensor, rare: bool = False) -> Tensor:
        x = self.first(x)
        x = self.attention(x, x, x)[0]
        found: Tensor = self.rare(x) if rare else self.second(x)
        return found


def names(module: nn.Module, waits: list[Collection[nn.Parameter]]) -> list[list[str]]:
    of = {parameter: name for name, parameter in module.named_parameters()}
    return [sorted(of[parameter] for parameter in wait) for wait in waits]


def test_the_first_forward_waits_for_all_and_later_ones_for_what_each_module_reads() -> None:
    module, waits = Tied(), list[Collection[nn.Parameter]]()
    readers = Readers(module, waits.append)
    module(torch.zeros(2, 4))
    assert all(len(wait) == len(list(module.parameters())) for wait in waits)
    readers.learn()
    waits.clear()
    module(torch.zeros(2, 4))
    root, first, attention, second = names(module, waits)
    assert root == ["rare.bias", "rare.weight"]  # nobody was seen to call it: the module around it may read it
    assert first == ["first.bias", "first.weight"] and second == ["second.bias", "second.weight"]
    assert attention == ["attention.in_proj_bias", "attention.in_proj_weight", "attention.out_proj.bias",
                         "attention.out_proj.weight"]


def test_a_module_that_is_called_for_the_first_time_waits_for_all_and_is_known_then() -> None:
    module, waits = Tied(), list[Collection[nn.Parameter]]()
    readers = Readers(module, waits.append)
    module(torch.zeros(2, 4))
    readers.learn()
    module(torch.zeros(2, 4), rare=True)
    waits.clear()
    module(torch.zeros(2, 4), rare=True)
    assert names(module, waits)[-1] == ["rare.bias", "rare.weight"]
    assert not names(module, waits)[0]


def test_saving_and_loading_wait_for_all_and_hooks_can_be_taken_away() -> None:
    module, waits = Tied(), list[Collection[nn.Parameter]]()
    readers = Readers(module, waits.append)
    state = module.state_dict()
    assert len(waits[0]) == len(list(module.parameters()))
    waits.clear()
    module.load_state_dict(state)
    assert len(waits[0]) == len(list(module.parameters()))
    readers.remove()
    waits.clear()
    module(torch.zeros(2, 4))
    module.load_state_dict(module.state_dict())
    assert not waits


def test_in_evaluation_modules_wait_for_all() -> None:
    module, waits = Tied(), list[Collection[nn.Parameter]]()
    readers = Readers(module, waits.append)
    module(torch.zeros(2, 4))
    readers.learn()
    module.eval()
    waits.clear()
    module(torch.zeros(2, 4))
    assert waits and all(len(wait) == len(list(module.parameters())) for wait in waits)


def test_copies_of_a_module_wait_for_nothing(tmp_path: Path) -> None:
    module, waits = Tied(), list[Collection[nn.Parameter]]()
    readers = Readers(module, waits.append)
    torch.save(module, tmp_path / "module")
    for copied in (copy.deepcopy(module), torch.load(tmp_path / "module", weights_only=False)):
        waits.clear()
        assert torch.equal(copied(torch.ones(2, 4)), copied(torch.ones(2, 4)))
        copied.load_state_dict(copied.state_dict())
        assert not waits
        require_unread(copied)
    with pytest.raises(ValueError, match=r"by a ShardedOptimizer already: close\(\) that one first"):
        require_unread(module)
    readers.remove()
    require_unread(module)
