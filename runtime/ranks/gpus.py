"""Whether the ranks of this machine have enough GPUs, and the backends of their process group."""

from __future__ import annotations

import os

import torch


def backends_for(device: torch.device) -> str:
    """The backends of a process group whose ranks compute on such a ``device``, as ``torch.distributed`` names them."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" and not lacks_gpus() else "gloo"


def lacks_gpus(ranks: int | None = None) -> bool:
    """Whether this machine has fewer GPUs than ``ranks`` (by default those started here), and NCCL cannot join ranks of
    one GPU."""
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if ranks is None else ranks
    return torch.cuda.device_count() < count and not nccl_shares_gpus()


def nccl_shares_gpus() -> bool:
    """Whether NCCL joins ranks of one GPU: from 2.31 on it does if ``NCCL_MULTI_RANK_GPU_ENABLE`` is 1."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
