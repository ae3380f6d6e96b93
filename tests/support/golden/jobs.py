"""What each process of the golden run of two jobs computes: two data parallel trainings, each replica with data of its
own (:mod:`tests.support.job_processes`)."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.support.job_processes import joined
from tests.support.shared_ranks import training

STEPS = 3


def main(folder: Path, *ports: str) -> None:
    """All steps once."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with joined(folder, ports) as own:
        own.run("shared", lambda plan, session: training("ab".index(own.job.name), plan, session, steps=STEPS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
