"""Entries of caches: one value under a key, with a checksum; an entry that differs from the one written counts as
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

#: The most entries in a folder, of those that :func:`keep` writes.
MOST = 64


def read_kept(path: Path, form: str, key: str, field: str) -> Mapping[str, Any] | None:
    """The object ``field`` of the entry ``path``, of the format ``form`` and under ``key``; ``None`` if there is no
    intact one."""
    try:
        entry = Entry(read_json(path), "cache")
        require_format(entry, form)
        entry.allow("format", "key", "checksum", field)
        value: Mapping[str, Any] = entry.child(field).value
        return value if entry.text("key") == key and entry.text("checksum") == json_digest(value) else None
    except (ValueError, KeyError):  # FormatError, and invalid numbers
        return None


def write_kept(path: Path, form: str, key: str, field: str, value: Mapping[str, Any]) -> None:
    """Write an entry for :func:`read_kept`, in a folder that is created if it is missing. Raises ``OSError``; an
    existing file is then untouched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {"format": form, "key": key, "checksum": json_digest(value), field: value}
    write_atomically(path, json.dumps(entry, allow_nan=False) + "\n")


def keep(path: Path, form: str, key: str, field: str, value: Mapping[str, Any]) -> None:
    """The same for one of a folder's :data:`MOST` newest entries: older ones are removed. Write errors are ignored."""
    with suppress(OSError):
        write_kept(path, form, key, field, value)
        for old in sorted(path.parent.glob("*.json"), key=os.path.getmtime)[:-MOST]:
            old.unlink(missing_ok=True)


def sources_digest(sources: Iterable[Path]) -> str:
    """A digest of these source files, in this order: code changes between two releases, too."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def json_digest(value: Any) -> str:
    """A digest of a JSON value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
