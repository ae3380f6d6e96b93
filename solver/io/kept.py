"""Entries of caches: one value under a key, with a checksum; an entry that is not what was written is as good as
missing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.solver.io.entries import Entry, read_json, require_format
from weft.solver.io.writing import write_atomically

#: Entries that a folder has at most, of those that :func:`keep` keeps.
MOST = 64


def read_kept(path: Path, form: str, key: str, field: str) -> Mapping[str, Any] | None:
    """The object ``field`` of the entry ``path``, of the format ``form`` and under ``key``; ``None`` where there is
    none that is whole."""
    try:
        entry = Entry(read_json(path), "cache")
        require_format(entry, form)
        entry.allow("format", "key", "checksum", field)
        value: Mapping[str, Any] = entry.child(field).value
        return value if entry.text("key") == key and entry.text("checksum") == json_digest(value) else None
    except (ValueError, KeyError):  # FormatError, and numbers that are none
        return None


def write_kept(path: Path, form: str, key: str, field: str, value: Mapping[str, Any]) -> None:
    """Write what :func:`read_kept` reads, in a folder that is made where there is none. Raises ``OSError``; a file that
    was there before is then untouched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"format": form, "key": key, "checksum": json_digest(value), field: value}
    write_atomically(path, json.dumps(entry, allow_nan=False) + "\n")


def keep(path: Path, form: str, key: str, field: str, value: Mapping[str, Any]) -> None:
    """The same for one of a folder's :data:`MOST` newest entries: older ones go. What cannot be written is not kept."""
    with suppress(OSError):
        write_kept(path, form, key, field, value)
        for old in sorted(path.parent.glob("*.json"), key=os.path.getmtime)[:-MOST]:
            old.unlink(missing_ok=True)


def sources_digest(sources: Iterable[Path]) -> str:
    """What tells these source files, in this order, from others: code changes between two releases, too."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def json_digest(value: Any) -> str:
    """What tells a value of JSON from others, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
