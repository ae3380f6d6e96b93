"""Measured costs: operator profiles and point-to-point curves, in the format of Aceso's profiler.

Source of the shipped ones: microsoft/SuperScaler (Aceso, Liu et al., EuroSys 2024), MIT; ``data/aceso/README.md``
documents the columns. A user's own file has the same columns.
"""

from __future__ import annotations

import csv
import glob
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from weft.models.files.limits import MAX_PROFILE_BYTES
from weft.models.spec.quantities import LARGEST, LONGEST
from weft.solver.io.reading import read_text

MIB = 1024**2
_COLUMNS = ("op_name", "forward-compute", "backward-compute", "input_size", "output_size", "weights", "activations",
            "fwd_reserved", "bwd_reserved")

#: Shipped profiles: name -> file of each micro-batch size.
PROFILES: Mapping[str, Mapping[int, str]] = {
    "gpt-1.3b-v100": {size: f"gpt_1_3B_mbs{size}_tp1_algo0.csv" for size in (1, 2, 4, 8)},
    "t5-770m-v100": {size: f"t5_770M_mbs{size}_tp1_algo0.csv" for size in (1, 2, 4, 8)},
}

#: Numbers of devices computing together with rows in the shipped profiles, besides one.
DEGREES = (2, 4, 8)


class ProfileError(ValueError):
    """A profile that cannot be read: the message names the file, the line and the column."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One row of a profile: times in seconds (multiples of 1 ns), sizes in bytes; see ``data/aceso/README.md``."""

    name: str
    forward: float
    backward: float
    input_bytes: int
    output_bytes: int
    weights_bytes: int
    activation_bytes: int
    forward_reserved: int
    backward_reserved: int


@cache
def shipped_profile(name: str, micro_batch_size: int, degree: int = 1) -> Mapping[str, ProfileRow]:
    """The operators of a shipped profile, by name; for ``degree`` devices that compute together, the work of one of
    them.

    Raises ``KeyError`` for a name or size not in ``PROFILES``.
    """
    return _read(_shipped(PROFILES[name][micro_batch_size].replace("_tp1_", f"_tp{degree}_")), name)


def profiles_beside(path: Path) -> dict[int, Path]:
    """The files that correspond to ``path``, a profile of one device by its name (``..._tp1_...``), for several devices
    that compute together, by their number."""
    before, one, after = path.name.rpartition("_tp1_")
    if not one:
        return {}
    found: dict[int, Path] = {}
    for other in sorted(path.parent.glob(f"{glob.escape(before)}_tp*_{glob.escape(after)}")):
        degree = other.name[len(before) + 3:-len(after) - 1]
        if degree.isascii() and degree.isdigit() and int(degree) > 1:
            found[int(degree)] = other
    return found


def load_profile(path: Path, where: str) -> Mapping[str, ProfileRow]:
    """The operators of a profile CSV, by name; ``where`` is the prefix of messages. Raises :class:`ProfileError`."""
    return _read(path, where)


@cache
def load_p2p_curve(file: str) -> tuple[tuple[int, float], ...]:
    """``(bytes, seconds)`` of point-to-point transfers in a shipped file, by rising size."""
    sizes, speeds = [[float(cell) for cell in row] for row in csv.reader(io.StringIO(_shipped(file).read_text()))]
    return tuple((round(size * MIB), size / 1024 / speed) for size, speed in zip(sizes, speeds, strict=True))


def _shipped(file: str) -> Traversable:
    return resources.files("weft.models") / "data" / "aceso" / file


def _read(source: Path | Traversable, where: str) -> Mapping[str, ProfileRow]:
    if isinstance(source, Path):
        text = read_text(source, MAX_PROFILE_BYTES, "a profile", ProfileError)
    else:
        text = source.read_text(encoding="utf-8")
    try:
        return _operators(text, where)
    except csv.Error as error:  # an unterminated cell, a null character
        raise ProfileError(f"{where}: is not CSV ({error})") from None


def _operators(text: str, where: str) -> Mapping[str, ProfileRow]:
    rows = csv.reader(io.StringIO(text))
    header = tuple(cell.strip() for cell in next(rows, []))
    if header != _COLUMNS:
        raise ProfileError(f"{where}: line 1: the columns are {', '.join(header) or 'missing'}, they must be "
                           f"{', '.join(_COLUMNS)}")
    operators: dict[str, ProfileRow] = {}
    for row in rows:
        if not row:
            continue
        here = f"{where}: line {rows.line_num}"
        if len(row) != len(_COLUMNS):
            raise ProfileError(f"{here}: has {len(row)} columns, it must have {len(_COLUMNS)}")
        if row[0] in operators:
            raise ProfileError(f"{here}: the operator {row[0]!r} appears twice")
        forward, backward = (_number(cell, f"{here}: {column}", LONGEST * 1e6)
                             for cell, column in zip(row[1:3], _COLUMNS[1:3], strict=True))
        sizes = [_number(cell, f"{here}: {column}", LARGEST / MIB)
                 for cell, column in zip(row[3:], _COLUMNS[3:], strict=True)]
        operators[row[0]] = ProfileRow(row[0], round(forward * 1e-6, 9), round(backward * 1e-6, 9),
                                     *(round(size * MIB) for size in sizes))
    return operators


def _number(cell: str, where: str, most: float) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise ProfileError(f"{where} is {cell.strip()!r:.60}, it must be a finite number from 0 to {most:g}")
    return value
