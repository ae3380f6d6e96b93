"""Transports by their names, and where stages run under them."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.registry import TRANSPORTS, device_for, parse_transport


@pytest.mark.parametrize("text", ["gloo", "gloo:sockets", "nccl", "shared", "symmetric", "emulated:1e-3,2e9"])
def test_a_transport_is_named(text: str) -> None:
    found, parameters = parse_transport(text)
    assert found.name == text.partition(":")[0] and found in TRANSPORTS
    assert parameters == (text.partition(":")[2] or None)


def test_the_device_follows_from_the_transport_and_the_gpus_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    texts = (None, "nccl", "symmetric", "shared", "gloo", "emulated:0,1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [str(device_for(text)) for text in texts] == ["cpu"] * 6
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(device_for(text)) for text in texts] == ["cpu", "cpu", "cpu", "cuda:1", "cpu", "cpu"]
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert [str(device_for(text)) for text in texts] == ["cuda:1", "cuda:1", "cuda:1", "cuda:1", "cpu", "cpu"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [str(device_for(text)) for text in texts] == ["cuda:3", "cuda:3", "cuda:3", "cuda:3", "cpu", "cpu"]


@pytest.mark.parametrize("text", ["", "Gloo", "gloo:1", "gloo:", "emulated", "emulated:", "emulated:1,2,3",
                                  "emulated:nan,1"])
def test_anything_else_is_no_transport(text: str) -> None:
    with pytest.raises(TransportError, match="it must be gloo, gloo:sockets, nccl, shared, symmetric or emulated"):
        parse_transport(text)
