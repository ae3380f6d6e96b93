"""What a process runs of the jobs of :mod:`tests.support.shared_mixes`, each job in processes of its own.

``python -m tests.support.shared_kills FOLDER PLAN VICTIM PORTS`` in seven processes: RANK says which job's rank each
is. VICTIM is ``job:number``, or nothing: that process kills itself in its second batch, with a turn of its own taken.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from tests.support.shared_mixes import SEEDS, training
from weft.runtime import Plan, Session, Training

#: The processes, in the order of RANK: a job and the number in it.
PROCESSES = [("pipeline", 0), ("pipeline", 1), ("pipeline", 2), ("data", 0), ("data", 1), ("answers", 0),
             ("answers", 1)]
SIZES = {"pipeline": 3, "data": 2, "answers": 2}


def killed_at(forward: int) -> Callable[..., None]:
    """A hook that ends the process at that forward: the model is the same."""
    left = [forward]

    def hook(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return hook


def of_rank(job: str) -> Callable[..., Training]:
    """A function as ``weft replay --stages`` names it: the process that VICTIM names kills itself."""
    def made(plan: Plan, rank: int, session: Session) -> Training:
        found = training(SEEDS[job], plan, session)
        if os.environ.get("VICTIM") == f"{job}:{session.process(session.rank)}":
            for module in found.stages.values():
                module.register_forward_pre_hook(killed_at(6 if job == "pipeline" else 5))
        return found
    return made


pipeline, data, answers = of_rank("pipeline"), of_rank("data"), of_rank("answers")


def main(folder: str, plan: str, victim: str, *more: str) -> None:
    """Be one process of one job."""
    from weft.cli.main import main as weft

    ports, options = more[:3], more[3:]
    job, number = PROCESSES[int(os.environ["RANK"])]
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(SIZES[job]),
                      LOCAL_WORLD_SIZE=str(SIZES[job]), MASTER_PORT=ports[list(SIZES).index(job)], VICTIM=victim)
    raise SystemExit(weft(["replay", plan, "--job", job, "--turns", folder, "--stages",
                           f"{job}=tests.support.shared_kills:{job}", *options]))


if __name__ == "__main__":
    main(*sys.argv[1:])
