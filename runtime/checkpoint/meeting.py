"""What ranks do together about the folder of a checkpoint: see the same one, prove it whole, begin the next."""

from __future__ import annotations

import shutil
from pathlib import Path

from weft.runtime.checkpoint.files import Marker, fault_of, share_of
from weft.runtime.ranks.session import Session, SessionError

__all__ = ["begin_partial", "require_one", "require_whole"]


def require_one(session: Session, folder: Path, found: tuple[str, str] | None) -> None:
    """Refuse to go on unless all ranks see one newest checkpoint in ``folder``: ``found``, its name and digest."""
    seen = session.everywhere(found, "looking for a checkpoint")
    for process, other in enumerate(seen):
        if other != seen[0]:
            names = [one and one[0] for one in (seen[0], other)]
            raise SessionError(f"{folder}: the newest checkpoint is {names[0]} for rank 0, but "
                               + (f"another {names[1]}" if names[0] == names[1] else f"{names[1]}")
                               + f" for rank {process}; all ranks must see one folder")


def require_whole(path: Path, marker: Marker, session: Session) -> None:
    """Refuse ``path`` where a file is not what was written; the ranks share the work of reading them."""
    mine = share_of(marker.files, session.process(session.rank), session.processes)
    fault = fault_of(path, marker, mine, lambda name: session.watch.doing(f"checking {path / name}"))
    for found in session.everywhere(fault, f"checking {path}"):
        if found is not None:
            raise SessionError(found)


def begin_partial(partial: Path, target: Path, session: Session) -> None:
    """Make the folder ``partial``, in which ``target`` is written, for all ranks; what an earlier one left is cleared
    away."""
    if session.process(session.rank) == 0:
        try:
            for left in partial.parent.glob(".step-*.partial"):
                shutil.rmtree(left)
            partial.mkdir(parents=True)
        except OSError as error:
            raise SessionError(f"{partial}: cannot be written: {error.strerror}") from None
    session.barrier(f"to save {target}")
