"""The ranks' common work on the folder of a checkpoint: see the same one, verify it, write the next."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.runtime.checkpoint.files import (
    CHECKPOINT_FORMAT,
    DamagedCheckpoint,
    Marker,
    checksums,
    commit,
    fault_of,
    marker_of,
    outlived,
    share_of,
)
from weft.runtime.ranks.session import Session, SessionError


def proven(session: Session, folder: Path, here: Path | None, unchecked: bool = False,
           wanted: str = CHECKPOINT_FORMAT) -> Marker | None:
    """The verified marker of the checkpoint ``here`` of ``folder``, which all ranks see; ``None`` without one. Raises
    :class:`~weft.runtime.ranks.session.SessionError` otherwise."""
    if here is None:
        _require_one(session, folder, None)
        return None
    try:
        marker = marker_of(here, unchecked, wanted)
    except DamagedCheckpoint as error:
        raise SessionError(str(error)) from None
    _require_one(session, folder, (here.name, marker.digest))
    _require_whole(here, marker, session)
    return marker


def _require_one(session: Session, folder: Path, found: tuple[str, str] | None) -> None:
    """Refuse to go on unless all ranks see one newest checkpoint in ``folder``: ``found``, its name and digest."""
    seen = session.everywhere(found, "looking for a checkpoint")
    for process, other in enumerate(seen):
        if other != seen[0]:
            names = [one and one[0] for one in (seen[0], other)]
            raise SessionError(f"{folder}: the newest checkpoint is {names[0]} for rank 0, but "
                               + (f"another {names[1]}" if names[0] == names[1] else f"{names[1]}")
                               + f" for rank {process}; all ranks must see one folder")


def _require_whole(path: Path, marker: Marker, session: Session) -> None:
    """Refuse ``path`` if a file differs from what was written; the ranks share the work of reading them."""
    mine = share_of(marker.files, session.process(session.rank), session.processes)
    fault = fault_of(path, marker, mine, lambda name: session.watch.doing(f"checking {path / name}"))
    for found in session.everywhere(fault, f"checking {path}"):
        if found is not None:
            raise SessionError(found)


def begin_partial(target: Path, session: Session) -> Path:
    """The folder in which ``target`` is written, made for all ranks; partial ones of earlier runs are removed."""
    partial = target.with_name(f".{target.name}.partial")
    if session.process(session.rank) == 0:
        try:
            for left in partial.parent.glob(".step-*.partial"):
                shutil.rmtree(left)
            partial.mkdir(parents=True)
        except OSError as error:
            raise SessionError(f"{partial}: cannot be written: {error.strerror}") from None
    session.barrier(f"to save {target}")
    return partial


def complete(session: Session, partial: Path, target: Path, facts: Mapping[str, Any], keep: int | None,
             format: str = CHECKPOINT_FORMAT) -> None:
    """All ranks have written their part of ``partial``: add checksums and the marker with ``facts``, and rename it;
    remove earlier checkpoints until ``keep`` stay (``None``: all). Raises ``OSError``."""
    session.watch.doing(f"making checksums of {partial}")
    process = session.process(session.rank)
    parts = session.everywhere(checksums(partial, process, session.processes), f"saving {target}")
    if process == 0:
        commit(partial, target, facts, {name: found for part in parts for name, found in part.items()}, format)
        for old in outlived(target.parent, keep, target, format) if keep else ():
            shutil.rmtree(old)
