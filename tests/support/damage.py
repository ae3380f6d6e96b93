"""Damage to files, drawn at random: to their bytes, to values in them, to what kind of file they are.

What draws is a ``random.Random``, or Hypothesis (:func:`changed`).
"""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

#: Values that a field is replaced with, whatever it held.
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 1.5, 1e308, 1e-320, 10**12, 2**31, 2**63, 10**30, float("nan"), float("inf"), "",
    " ", "x", "nan", "1e9", "-1 ms", "x" * 3000, "a\0b", "\ud800", "..", "gpu0", [], {}, [[]], [None], [0, 0], [1e308],
    {"a": 1}, [{}], {"__proto__": {}}, [[[[[[[[]]]]]]]], 99, 10**18, 10**22, 10**99, 10**101, 10**400, 2**53, 2**64 - 1,
    0.5, -0.5, -1e308, 1e-9, 1e-99, 5e-324, 1e30, "f0", "forward", "none", "weft.problem/2", "\0", "\x1b[31m", "\ufffe",
    "\u202e", "é" * 500, "x" * 100_000, "a/" * 200, "../x", "32 G", "5 ms", "1 GiB", "1 GB/s", "gpt", "h100",
    "roofline", "float32", "torch.ops.aten.mul.Tensor", [1], [2**63], ["a", "a"], {"block": "f0"})
#: Of the field's own type: what a reader that looks at types lets pass.
_NUMBERS = (-1, 0, 1, 2, 3, 5, 8, 64, 1000, 10**6, 10**9, 10**12, 2**31, 2**63 - 1, 2**63, 10**22, 10**30)
_FRACTIONS = (-1.0, 0.0, 1e-320, 1e-300, 1e-12, 0.1, 0.3333333, 1.0, 2.5, 1e6, 1e15, 1e22, 1e300, 1e308)
_TEXTS = ("", " ", "x", "f0", "b1", "gpu0", "s", "B", "forward", "backward", "chain", "v", "1 ms", "0 ms", "1e300 s",
          "1e-300 s", "32 G", "32 gib", "1_000 MiB", "1e30 GiB", "0 GiB", "a\0b", "\x1b[31m", "\ufffe", "\ud800",
          "[/x]", ":x:", "</script>", "'+x+'", "n" * 100_000, "é", "gpt", "h100", "v100", "adama", "full", "split",
          "s0*s1", "inf")
_BYTES = (b"", b"\0", b"\xff\xfe", b"\x1b[2J", b"{", b"]", b"\"", b"-", b"1e999", b"9" * 400, b"\n", b"\xed\xa0\x80",
          b"null", b": ", b"&a *a", b"!!python/object:os.system ", b"\t", b"[" * 2000, b"{\"a\":" * 1500)


def damaged(draw: random.Random, folder: Path, victim: str) -> bytes | str | None:
    """The file ``victim`` of ``folder`` damaged, or what is there instead (:class:`tests.support.fuzzing.Input`)."""
    content = (folder / victim).read_bytes()
    kind = draw.choice(["bytes", *["value"] * 6, "other", "place"])
    if kind == "place":
        return draw.choice([None, "...", "/dev/null", victim, b""])  # a link to itself is a loop
    if kind == "other":
        return (folder / draw.choice(sorted(path.name for path in folder.iterdir()))).read_bytes()
    if kind == "value" and victim.endswith(".json"):
        return json.dumps(with_values(draw, json.loads(content))).encode()
    if kind == "value" and victim.endswith(".yaml"):
        return yaml.dump(with_values(draw, yaml.safe_load(content))).encode("utf-8", "surrogatepass")
    if kind == "value" and victim.endswith(".pt2"):
        return with_program(content, lambda program: with_values(draw, program))
    return with_bytes(draw, content)


def with_bytes(draw: random.Random, content: bytes) -> bytes:
    """``content`` with bytes changed, taken out, put in or cut off."""
    for _ in range(draw.choice([1, 1, 3])):
        first = draw.randrange(len(content) + 1)
        last = first + draw.choice([0, 0, 1, 2, 20])
        content = content[:first] + draw.choice([*_BYTES, bytes([draw.randrange(256)])]) + content[last:]
        if draw.random() < 0.1:
            content = content[:draw.randrange(len(content) + 1)]
    return content


def with_program(content: bytes, change: Callable[[Any], Any]) -> bytes:
    """An archive of torch.export with what ``change`` gives for its program."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("models/model.json"):
                data = json.dumps(change(json.loads(data))).encode()
            new.writestr(name, data)
    return result.getvalue()


def rewritten(source: Path, target: Path, change: Callable[[Any], object]) -> Path:
    """``source`` with what ``change`` does to its program."""
    def changed(program: Any) -> Any:
        change(program)
        return program

    target.write_bytes(with_program(source.read_bytes(), changed))
    return target


def with_values(draw: random.Random, value: Any) -> Any:
    """A copy of ``value`` in which some entries are others, taken out, put in, renamed or exchanged."""
    whole = {"": copy.deepcopy(value)}
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        holder, key = _somewhere(draw, whole)
        choice = draw.random()
        if choice < 0.45:
            holder[key] = _alike(draw, holder[key])
        elif choice < 0.7 or holder is whole:
            holder[key] = copy.deepcopy(draw.choice(_VALUES))
        elif choice < 0.8:
            del holder[key]
        elif choice < 0.85:
            other, place = _somewhere(draw, whole)
            holder[key] = copy.deepcopy(other[place])
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(draw.choice(holder)))
        else:
            new = draw.choice(["x", "", "format", "name", "\0", "layers", "\ud800", "x" * 300])
            holder[new] = holder.pop(key) if choice < 0.92 else copy.deepcopy(draw.choice(_VALUES))
    return whole[""]


def changed(value: Any) -> st.SearchStrategy[Any]:
    """:func:`with_values` as Hypothesis draws it."""
    return st.randoms(use_true_random=False).map(lambda draw: with_values(draw, value))


def _alike(draw: random.Random, value: Any) -> Any:
    """Another value of the type of ``value``."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([*_NUMBERS, value + 1, value - 1, -value, float(max(-10**300, min(value, 10**300)))])
    if isinstance(value, float):
        return draw.choice([*_FRACTIONS, value * 2, -value, value * 1e9])
    if isinstance(value, str):
        return draw.choice([*_TEXTS, value + " ", value.upper(), value * 2])
    if isinstance(value, list):
        return draw.choice([value[::-1], value * 2, value[:1], value[1:]])
    return {} if isinstance(value, dict) else draw.choice(_VALUES)


def _somewhere(draw: random.Random, value: Any) -> tuple[Any, Any]:
    """A list or an object within ``value`` and a key in it, near the top more often than deep inside."""
    holder: Any = value
    key: Any = ""
    value = value[key]
    while isinstance(value, dict | list) and value and draw.random() < (0.97 if key == "" else 0.85):
        holder = value
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        value = holder[key]
    return holder, key
