"""The JSON Schema of a spec and its reader are one definition: they accept the same texts and numbers."""

from __future__ import annotations

import copy
import os
from typing import Any

import jsonschema
import pytest
from hypothesis import example
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.examples import for_all
from weft.models.spec.quantities import (
    BANDWIDTH,
    BYTES,
    LARGEST,
    LONGEST,
    MEMORY,
    RESERVE,
    SECONDS,
    SOME_SECONDS,
    Quantity,
)
from weft.models.spec.sections import Spec
from weft.models.spec.spec import spec_schema

EXAMPLES = int(os.environ.get("WEFT_EXAMPLES", "100"))
KINDS = {"bytes": BYTES, "memory": MEMORY, "reserve": RESERVE, "seconds": SECONDS, "some seconds": SOME_SECONDS,
         "bandwidth": BANDWIDTH}
SPEC: dict[str, Any] = {
    "name": "a", "model": {"layers": [{"name": "b", "forward": "1 ms", "input_grad": "1 ms", "weight_grad": "1 ms"}]},
    "cluster": {"gpus": 1, "memory": "1 GiB", "bandwidth": "1 GB/s", "gpus_per_machine": 1,
                "machine_bandwidth": "1 GB/s"},
    "training": {"micro_batches": 1}}
PLACES = [("cluster", name) for name in ("gpus_per_machine", "memory", "reserve", "bandwidth", "latency",
                                         "machine_bandwidth", "machine_latency", "host_bandwidth")]
PLACES += [("training", name) for name in ("micro_batches", "micro_batch_size", "parameter_bytes", "gradient_bytes",
                                           "optimizer_bytes_per_parameter", "recompute")]
PLACES += [("layer", name) for name in ("forward", "input_grad", "weight_grad", "activation_memory", "output",
                                        "weights", "repeat", "name")]
VALIDATOR = jsonschema.Draft202012Validator(spec_schema())

_SPACES = st.sampled_from(["", "", "", " ", "  ", "\t", "\n", "\u00a0", "\u2003"])
_NUMBERS = st.one_of(
    st.integers(0, 10**20).map(str), st.floats(0, 1e20).map(repr), st.floats(0, 1e3).map(lambda x: f"{x:.3f}"),
    st.sampled_from(["0", "00.0", "1_000", "1__0", "_1", "1_", "1.", ".5", ".", "1e3", "1E-3", "1.5e+04", "0e5",
                     "1e400", "999999999", "1000000000", "9" * 15, "9" * 16, "0.0001", "12.5", "٣", "inf", "nan",
                     "0x10", "007"]),
    st.from_regex(r"\A[0-9._]{1,8}(?:[eE][+-]?[0-9]{1,3})?\Z"))
_UNITS = st.one_of(
    st.sampled_from(["", "B", "b", "G", "GB", "gib", "Gi", "MiB", "mB", "KiB", "kb", "TiB", "PB", "ns", "us", "µs",
                     "μs", "ms", "s", "S", "m", "GB/s", "Gb/s", "gB/s", "Gbps", "Gbit/s", "GiB/s", "kbit/s", "bit/s",
                     "B/s", "MB/ s", "tbit/S"]),
    st.text("KMGTkmgtiIbBsnu/pt ", max_size=6))
_TEXTS = st.one_of(
    st.builds("{}{}{}{}{}{}".format, _SPACES, st.sampled_from(["", "", "", "+", "-"]), _NUMBERS, _SPACES, _UNITS,
              _SPACES),
    st.text(max_size=12), st.from_regex(r"\A[ +0-9._eEKMGTiBbs/]{0,12}\Z"), st.text("0", min_size=60, max_size=70))
_VALUES = st.one_of(
    _TEXTS, st.integers(-2, 2000), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(),
    st.none(), st.sampled_from([LARGEST, LARGEST + 1, LONGEST, 1e-9, 1e-10, 0.125, 0.1, 16.0, 16.5, 1e300, 5e-324]),
    st.lists(st.one_of(_TEXTS, st.integers(0, 9)), max_size=2))


def accepted(kind: Quantity, value: object) -> bool:
    try:
        amount = kind.parse(value)
    except ValueError as error:
        assert "it must" in str(error) and "\n" not in str(error)
        return False
    assert kind.least * (1 - 1e-9) <= amount <= kind.most
    return True


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@for_all(value=st.one_of(_TEXTS, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
         tries=EXAMPLES)
@example(value="32 G")
@example(value="32 gib")
@example(value="1_000 MiB")
@example(value="1.2.3 GiB")
@example(value="1 GiB\n")
@example(value="0.0 GB/s")
@example(value="1e9 s")
def test_a_quantity_is_in_its_schema_exactly_if_it_is_read(kind: Quantity, value: object) -> None:
    assert jsonschema.Draft202012Validator(kind.schema).is_valid(value) == accepted(kind, value)


@for_all(place=st.sampled_from(PLACES), value=_VALUES, tries=EXAMPLES)
@example(place=("training", "micro_batches"), value=16.0)
@example(place=("cluster", "memory"), value=0)
@example(place=("cluster", "memory"), value=[])
@example(place=("layer", "forward"), value="0 ms")
def test_a_value_is_in_the_schema_of_a_spec_exactly_if_it_is_read(place: tuple[str, str], value: object) -> None:
    spec = copy.deepcopy(SPEC)
    section = spec["model"]["layers"][0] if place[0] == "layer" else spec[place[0]]
    section[place[1]] = value
    try:
        Spec.model_validate(spec)
        read = True
    except ValidationError as error:
        if any(entry["type"] == "section" and entry["loc"][-1] != place[1] for entry in error.errors()):
            return  # several keys that do not go together, which no schema of one key says
        read = False
    if isinstance(value, str) and value.endswith("\n") and place[1] == "name":
        return  # Python's $ matches before a last newline, that of JSON Schema does not
    assert VALIDATOR.is_valid(spec) == read


@pytest.mark.parametrize(("kind", "text", "amount"), [
    (BYTES, "32 gib", 32 * 1024**3), (BYTES, "1_000 MiB", 1000 * 1024**2), (BYTES, "32e9", 32 * 10**9),
    (BYTES, "1e-3 MB", 1000), (SECONDS, "120 µs", 120e-6), (SECONDS, "1e-3", 1e-3), (SOME_SECONDS, "1e-9", 1e-9),
    (BANDWIDTH, "100 Gbit/s", 12.5e9), (BANDWIDTH, "0.001 KB/s", 1.0), (BANDWIDTH, "25 gibit/s", 25 * 2**30 / 8)])
def test_amounts(kind: Quantity, text: str, amount: float) -> None:
    assert kind.parse(text) == pytest.approx(amount, rel=1e-12)


@pytest.mark.parametrize(("kind", "text", "words"), [
    (BYTES, "32 G", "write GB (powers of 1000) or GiB (of 1024), it must be"), (BYTES, "1000 TiB", "it is too large"),
    (BANDWIDTH, "100 Gb/s", "write GB/s (bytes) or Gbit/s (bits)"), (BANDWIDTH, "100 Gbps", "write GB/s (bytes)"),
    (BANDWIDTH, "36", "did you mean '36 GB/s'? (it must be"),
    (SOME_SECONDS, "0.0 ms", "it must be greater than 0"), (SECONDS, "1" * 65, "longer than 64 letters"),
    (SECONDS, "1e9", "before an exponent 1 to 3 digits"), (BYTES, "-1 GiB", "it must not be negative")])
def test_what_could_mean_two_things_is_refused_in_words(kind: Quantity, text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        kind.parse(text)
    assert words in str(caught.value)
