"""The files of a checkpoint and their verification.

A checkpoint's marker, ``complete.json``, has the size and the SHA-256 of every other file, and the SHA-256 of its own
content. A corrupted, truncated, exchanged or added file is reported before anything is read from it. This does not
authenticate the writer.

All ranks work on the folder of a checkpoint together: they check that they see the same one, verify it, and write the
next.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.runtime.ranks.session import Session, SessionError
from weft.solver.io.entries import Entry, FormatError, read_json

CHECKPOINT_FORMAT = "weft.checkpoint/3"
#: The earlier formats: without checksums, and the first without replicas, which for one replica makes no difference.
UNCHECKED_FORMATS = ("weft.checkpoint/2", "weft.checkpoint/1")
#: The endings of files with tensors, all of which a marker lists.
TENSORS = (".distcp", ".safetensors")
MARKER = "complete.json"


class DamagedCheckpoint(ValueError):
    """A checkpoint is damaged; the message names the file."""


class FileFacts(NamedTuple):
    """A file's required size in bytes, and SHA-256 (``None`` in checkpoints that have none)."""

    size: int
    sha256: str | None


class Marker(NamedTuple):
    """The marker of the checkpoint in ``path``: the digest of its plan, the numbers of batches and of replicas
    (``None``: unrecorded), the signatures of stages by rank, the files, and the SHA-256 of all these. A checkpoint by
    names has no plan and no signatures, but may have the ``seed`` of random operators. ``optimizers``: the kind of each
    rank's state. ``dtype``: the dtypes of the modules' parameters. ``phase``: the position of the training in a family
    of plans (``None``: unrecorded)."""

    path: Path
    plan: str
    step: int
    replicas: int | None
    signatures: Mapping[str, Any]
    files: Mapping[str, FileFacts]
    digest: str
    seed: int | None = None
    optimizers: Mapping[str, Any] | None = None
    dtype: str | None = None
    phase: Mapping[str, Any] | None = None


# -- finding -----------------------------------------------------------------------------------------------------------


def newest(folder: Path) -> Path | None:
    """The newest checkpoint of the last run that saved in ``folder``, valid or damaged. (A folder gets its name when it
    is complete.)"""
    runs = [path for path in _runs(folder) if any(path.glob("step-*"))]
    return max((runs[-1] if runs else folder).glob("step-*"), default=None)


def place_of_run(folder: Path, begun: Path | None) -> Path:
    """The folder of a run that resumed from the checkpoint ``begun`` (``None``: a new run): ``folder``, or if that has
    checkpoints of another run, a subfolder ``run-002`` and so on, so that checkpoints of two runs are not mixed."""
    found = newest(folder)
    if found is None:
        return folder
    if begun is not None and found.resolve() == begun.resolve():
        return found.parent
    return folder / f"run-{max((int(path.name[4:]) for path in _runs(folder)), default=1) + 1:03d}"


def _runs(folder: Path) -> list[Path]:
    """The folders of further runs in ``folder``, in their order."""
    return sorted((path for path in folder.glob("run-*") if path.name[4:].isdecimal()),
                  key=lambda path: int(path.name[4:]))


def outlived(folder: Path, keep: int, just: Path, format: str = CHECKPOINT_FORMAT) -> list[Path]:
    """The complete checkpoints in ``folder`` to remove so that ``keep`` stay; ``just``, the newest, always stays."""
    return [path for path in whole(folder, format) if path != just][max(0, keep - 1):]


def whole(folder: Path, format: str = CHECKPOINT_FORMAT) -> list[Path]:
    """The checkpoints in ``folder``, newest first, whose marker can be read and whose files have their sizes."""
    return [path for path in sorted(folder.glob("step-*"), reverse=True) if _is_whole(path, format)]


def _is_whole(path: Path, format: str) -> bool:
    try:
        return fault_of(path, marker_of(path, True, format), (), lambda name: None) is None
    except DamagedCheckpoint:
        return False


# -- writing -----------------------------------------------------------------------------------------------------------


def share_of(names: Iterable[str], process: int, processes: int) -> list[str]:
    """The share of ``names`` that ``process`` reads."""
    return sorted(names)[process::processes]


def checksums(folder: Path, process: int, processes: int) -> dict[str, FileFacts]:
    """The sizes and checksums of this process's share of the files in ``folder``. Raises ``OSError``."""
    return {name: _facts(folder / name) for name in share_of((path.name for path in folder.iterdir()), process,
                                                             processes)}


def write_marker(folder: Path, facts: Mapping[str, Any], files: Mapping[str, FileFacts],
                 format: str = CHECKPOINT_FORMAT) -> None:
    """Mark the content of ``folder`` as complete, and sync it to the disk. Raises ``OSError``."""
    content = {"format": format, **facts,
               "files": {name: {"size": found.size, "sha256": found.sha256} for name, found in sorted(files.items())}}
    with open(folder / MARKER, "w", encoding="utf-8") as marker:
        marker.write(_text(content))
        marker.flush()
        os.fsync(marker.fileno())


def commit(partial: Path, target: Path, facts: Mapping[str, Any], files: Mapping[str, FileFacts],
           format: str = CHECKPOINT_FORMAT) -> None:
    """Mark ``partial`` as complete, and rename it to ``target``, atomically. Raises ``OSError``."""
    write_marker(partial, facts, files, format)
    _sync(partial)
    earlier = target.with_name(f".{target.name}.earlier.partial")
    if target.exists():  # another run saved this batch
        os.rename(target, earlier)
    os.rename(partial, target)
    _sync(target.parent)
    shutil.rmtree(earlier, ignore_errors=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(content: Mapping[str, Any]) -> str:
    """The canonical text of the marker ``content``."""
    return json.dumps({**content, "sha256": _digest(content)}, indent=1)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _facts(path: Path) -> FileFacts:
    with open(path, "rb") as file:
        return FileFacts(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


# -- reading -----------------------------------------------------------------------------------------------------------


def marker_of(path: Path, unchecked: bool = False, wanted: str = CHECKPOINT_FORMAT) -> Marker:
    """The marker of the checkpoint ``path`` in the format ``wanted``, verified; ``unchecked``: also one without
    checksums. Raises :class:`DamagedCheckpoint`."""
    try:
        written, entry = (path / MARKER).read_bytes(), Entry(read_json(path / MARKER), str(path / MARKER))
        format = entry.text("format")
        if format in UNCHECKED_FORMATS and wanted == CHECKPOINT_FORMAT:
            if not unchecked:
                raise DamagedCheckpoint(f"{path}: the checkpoint is of an earlier weft ({format}), which wrote no "
                                        "checksums: whether its files are whole cannot be told; go on from it with "
                                        "--unchecked, or delete the folder")
            files = {name: FileFacts(size, None) for name, size in entry.child("files").value.items()}
            digest = _digest(entry.value)
        elif format == wanted:
            content = {name: value for name, value in entry.value.items() if name != "sha256"}
            if written != _text(content).encode():
                raise FormatError(f"{entry.where}: is not what was written: its own sha256 is another")
            listed = entry.child("files")
            files = {name: FileFacts(listed.child(name).count("size"), listed.child(name).text("sha256"))
                     for name in listed.value}
            digest = entry.text("sha256")
        else:
            raise FormatError(f"{entry.where}: format is {format!r:.60}, it must be {wanted}")
        of_a_plan = wanted == CHECKPOINT_FORMAT
        marker = Marker(path, entry.text("plan") if of_a_plan else "", entry.count("step"),
                        entry.count("replicas") if entry.has("replicas") else None,
                        entry.child("signatures").value if of_a_plan else {}, files, digest,
                        entry.value["seed"] if type(entry.value.get("seed")) is int else None,
                        entry.child("optimizers").value if entry.has("optimizers") else None,
                        entry.text("dtype") if entry.has("dtype") else None,
                        entry.child("phase").value if entry.has("phase") else None)
    except OSError as error:
        raise DamagedCheckpoint(damaged(f"{path / MARKER}: {error.strerror}")) from None
    except FormatError as error:
        raise DamagedCheckpoint(damaged(str(error))) from None
    if path.name != f"step-{marker.step:09d}":
        raise DamagedCheckpoint(damaged(f"{path}: {MARKER} is of batch {marker.step}"))
    return marker


def fault_of(path: Path, marker: Marker, names: Iterable[str], before: Callable[[str], None]) -> str | None:
    """A sentence on the first file that differs from ``marker``, or ``None``. All files must exist with their sizes,
    and no others with tensors (a user may add a ``config.json``); the contents of ``names`` are compared too, and
    ``before`` is called for each."""
    try:
        there = {file.name for file in path.iterdir() if file.suffix in TENSORS or file.name in marker.files}
        for name in sorted(there ^ set(marker.files)):
            return damaged(f"{path / name}: " + (f"is not among the files in {MARKER}" if name in there else
                                                 "is missing"))
        for name, facts in sorted(marker.files.items()):
            if (size := (path / name).stat().st_size) != facts.size:
                return damaged(f"{path / name}: has {size} bytes, {MARKER} says {facts.size}")
        for name in names:
            before(name)
            if marker.files[name].sha256 not in (None, found := _facts(path / name).sha256):
                return damaged(f"{path / name}: is not what was written: its sha256 is {found}, {MARKER} says "
                               f"{marker.files[name].sha256}")
    except OSError as error:
        return damaged(f"{error.filename or path}: cannot be read: {error.strerror}")
    return None


def damaged(sentence: str) -> str:
    """``sentence``, and its remedy."""
    return f"{sentence}; the checkpoint is damaged: delete its folder to go on from the one before it"


def proven(session: Session, folder: Path, here: Path | None, unchecked: bool = False,
           wanted: str = CHECKPOINT_FORMAT) -> Marker | None:
    """The verified marker of the checkpoint ``here`` in ``folder``; ``None`` without a checkpoint. Raises
    :class:`~weft.runtime.ranks.session.SessionError` if it is damaged or not the same for all ranks."""
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
    """Raise :class:`~weft.runtime.ranks.session.SessionError` unless all ranks see the same newest checkpoint in
    ``folder``; ``found``: its name and digest on this rank."""
    seen = session.everywhere(found, "looking for a checkpoint")
    for process, other in enumerate(seen):
        if other != seen[0]:
            names = [one and one[0] for one in (seen[0], other)]
            raise SessionError(f"{folder}: the newest checkpoint is {names[0]} for rank 0, but "
                               + (f"another {names[1]}" if names[0] == names[1] else f"{names[1]}")
                               + f" for rank {process}; all ranks must see one folder")


def _require_whole(path: Path, marker: Marker, session: Session) -> None:
    """Raise :class:`~weft.runtime.ranks.session.SessionError` if a file of ``path`` is damaged; the ranks share the
    reading."""
    mine = share_of(marker.files, session.process(session.rank), session.processes)
    fault = fault_of(path, marker, mine, lambda name: session.watch.doing(f"checking {path / name}"))
    for found in session.everywhere(fault, f"checking {path}"):
        if found is not None:
            raise SessionError(found)


def begin_partial(target: Path, session: Session) -> Path:
    """Create the folder in which ``target`` is written, for all ranks; partial ones of earlier runs are removed."""
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
    """Complete ``partial`` after all ranks have written their parts: add checksums and the marker with ``facts``,
    rename it, and remove earlier checkpoints until ``keep`` stay (``None``: all). Raises ``OSError``."""
    session.watch.doing(f"making checksums of {partial}")
    process = session.process(session.rank)
    parts = session.everywhere(checksums(partial, process, session.processes), f"saving {target}")
    if process == 0:
        commit(partial, target, facts, {name: found for part in parts for name, found in part.items()}, format)
        for old in outlived(target.parent, keep, target, format) if keep else ():
            shutil.rmtree(old)
