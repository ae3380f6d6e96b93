"""Two plans of a setup for two ranks, cut at different places, as files.

``python -m tests.support.two_plans FILE.py:FUNCTION FOLDER`` under two ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import weft
from weft.app.train.setup import setup_of
from weft.runtime.plan.plan import save_plan


def main(name: str, folder: Path) -> None:
    """What one rank does."""
    setup = setup_of(name)
    for number, cuts in enumerate(([2], [3])):
        with weft.pipeline(setup.module, setup.args, loss=setup.loss, target=setup.target, cuts=cuts, schedule="1f1b",
                           micro_batches=setup.micro_batches or 2, **setup.options) as pipe:
            if pipe.rank == 0:
                save_plan(pipe.plan, folder / f"{number}.json")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
