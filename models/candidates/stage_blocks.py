"""The blocks of a stage: its forward and its backward, whole or in two parts.

A forward allocates the stage's activations (A), the full backward frees them; a split backward's input gradient keeps
the tensors of the weight gradient (K: it frees A - K, or allocates K - A), the weight gradient frees those. In
inference a forward holds its working set while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from weft.models.candidates.stages import Backward, StageCost
from weft.models.layers.cluster import Network
from weft.solver.problem import Block, BlockKind, Dependency


def forward_block(s: int | str, stage: StageCost, where: tuple[int, ...], backward: Backward,
                  after: tuple[Dependency, ...]) -> Block:
    """The forward of stage ``s`` on the devices ``where``."""
    kept, workspace = (0, stage.working_set) if backward == "none" else (stage.activation, stage.workspace_forward)
    return Block(f"F{s}", BlockKind.FORWARD, where, seconds_of(stage.forward), (kept,), (workspace,), after)


def gradient_blocks(s: int | str, stage: StageCost, where: tuple[int, ...], backward: Backward,
                    after: tuple[Dependency, ...]) -> Iterator[Block]:
    """The backward of stage ``s``: whole if it is not split or has only one of the two parts."""
    kept = stage.activation
    if not stage.backward:  # runs without gradients (recycling): it keeps nothing and has no backward
        return
    if backward == "full" or not stage.weight_grad:
        yield Block(f"B{s}", BlockKind.BACKWARD, where, seconds_of(stage.backward), (-kept,),
                    (stage.workspace_backward,), after)
    elif not stage.input_grad:  # such as the embedding alone: stage 0 has no input gradient to send
        kind = BlockKind.WEIGHT_GRAD if s == 0 else BlockKind.BACKWARD
        yield Block(f"{kind.letter}{s}", kind, where, seconds_of(stage.weight_grad), (-kept,),
                    (stage.workspace_after_forward,), after)
    else:
        yield Block(f"I{s}", BlockKind.INPUT_GRAD, where, seconds_of(stage.input_grad), (stage.held - kept,),
                    (stage.workspace_backward,), after)
        yield Block(f"W{s}", BlockKind.WEIGHT_GRAD, where, seconds_of(stage.weight_grad), (-stage.held,),
                    (stage.workspace_weight_grad,), (Dependency(f"I{s}"),))


def transfer_seconds(stages: Sequence[StageCost], devices: Sequence[int], network: Network) -> list[float]:
    """The transfer time of a stage's output to the next one; its gradient takes the same time."""
    return [network.seconds(stage.output, (device,), (following,))
            for stage, (device, following) in zip(stages, pairwise(devices), strict=False)]


def seconds_of(nanoseconds: int) -> float:
    """Whole nanoseconds in seconds."""
    return round(nanoseconds * 1e-9, 9)
