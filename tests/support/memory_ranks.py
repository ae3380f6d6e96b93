"""What each rank of the tests of planned memory runs: pipelines one after another, each for one step.

``python -m tests.support.memory_ranks FOLDER`` under ranks; each writes what it found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import weft
from tests.support.captured_models import GPT, Checkpointed, token_loss
from weft.runtime.plan.buffers import OPEN_SENDS

#: Bytes of each rank: too few to keep all, enough for a plan.
LIMIT = 9 * 2**19
CASES: dict[str, dict[str, Any]] = {
    "planned": {"memory": LIMIT},
    "by module": {"memory_plan": {"layers.0": "recompute", "layers.2": "offload"}, "co_shard": {"layers.1": 4},
                  "schedule": "zb-h1", "cuts": [34]},
    "checkpointed": {"schedule": "zb-h1", "cuts": [34]}, "reentrant": {"cuts": [34]}}


def model(name: str = "") -> GPT:
    """The same on all ranks, at each call; in some cases with checkpoints of its own."""
    torch.manual_seed(0)
    if name not in ("checkpointed", "reentrant"):
        return GPT(4, 32, 97, 32).double()
    found = Checkpointed(4, 32, 97, 32).double()
    found.reentrant = name == "reentrant"
    return found


def batch() -> torch.Tensor:
    """The ids of one batch."""
    torch.manual_seed(1)
    return torch.randint(97, (32, 32))


def main() -> None:
    """What one rank does."""
    found = {}
    for name, options in CASES.items():
        ids, given = batch(), {"schedule": "1f1b", **options}
        with weft.pipeline(model(name), (ids,), loss=token_loss, target=ids, micro_batches=4, time_limit=60.0,
                           timeout=900.0, **given) as pipe:
            loss = pipe.step(ids, target=ids)
            sent = sorted(send.layout.size for send in pipe._stepping.running[0].executor.table.sends)
            found[name] = {"loss": loss, "gradients": {n: g.clone() for n, g in pipe.gradients().items()},
                           "report": pipe.report().to_json(), "decided": pipe.plan.solver["operator_memory"],
                           "digest": pipe.plan.digest, "under_way": sum(sent[-OPEN_SENDS:])}
            torch.save(found, Path(sys.argv[1]) / f"{pipe.rank}.pt")


if __name__ == "__main__":
    main()
