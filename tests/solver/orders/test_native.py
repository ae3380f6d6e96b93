"""The compiled kernel decides what its twin decides, and where it cannot be used one sentence says why."""

from __future__ import annotations

import _ctypes
import importlib.util
import re
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.kernels import KINDS, Case, case, compiled, cyclic, decisions, tight
from weft.solver.control import compiled as binary
from weft.solver.orders import local_search
from weft.solver.orders.native import NativeKernel
from weft.solver.orders.twin import TwinKernel

#: Cases that the two once decided differently: where orders that fit less are taken by the charge for them alone, and
#: where a link is busy while memory is waited for.
ONCE_DIFFERENT = (("small", 4), ("pipeline", 0), ("lanes and links", 32), ("lanes and links", 75))


def alike(some: Case, seed: int, evaluations: int) -> None:
    twin = decisions(TwinKernel(some.tables), some, seed, evaluations)
    assert decisions(NativeKernel(some.tables), some, seed, evaluations) == twin


@compiled
@pytest.mark.parametrize(("kind", "number"), ONCE_DIFFERENT)
def test_both_kernels_decide_alike_where_they_once_did_not(kind: str, number: int) -> None:
    for seed in (0, 7, 2**63):
        alike(case(kind, number), seed, 40)
    alike(tight(case(kind, number)), 1, 40)


@compiled
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(0, 2**64 - 1), st.booleans())
def test_both_kernels_decide_alike_on_any_problem(kind: str, number: int, seed: int, half: bool) -> None:
    some = case(kind, number)
    alike(tight(some) if half else some, seed, 100)


@compiled
@given(st.sampled_from(["span", "period"]), st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(0, 2**64 - 1),
       st.booleans())
def test_both_kernels_find_the_same_cycles(objective: str, kind: str, number: int, seed: int, half: bool) -> None:
    some = cyclic(objective, kind, number)
    assume(some is not None)
    assert some is not None
    alike(tight(some) if half else some, seed, 40)


def test_the_binary_is_asked_for_the_version_of_its_source() -> None:
    source = Path(local_search.__file__).with_name("kernel.cpp").read_text(encoding="utf-8")
    assert re.findall(r"constexpr int kVersion = (\d+);", source) == [str(binary.VERSION)]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found of the binary, and said of it, is forgotten before and after."""
    for known in (binary._library, local_search._notice):
        known.cache_clear()
    yield
    for known in (binary._library, local_search._notice):
        known.cache_clear()


def said(monkeypatch: pytest.MonkeyPatch, binary: Path | None) -> str:
    """What is said of ``binary``, once for two searches that run in Python."""
    spec = None if binary is None else ModuleSpec("weft.solver.orders._kernel", None, origin=str(binary))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    tables = case("small", 0).tables
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert all(isinstance(local_search.kernel_of(tables), TwinKernel) for _ in range(2))
    [warning] = found
    assert warning.category is RuntimeWarning and "\n" not in str(warning.message)
    return str(warning.message)


@pytest.mark.usefixtures("forgotten")
def test_what_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, None) == (
        "the compiled kernel is not used, as it was not built, as there was no C++ compiler when weft was installed; "
        "local search runs in Python, a hundred times slower")


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("content", ["", "no library\n"])
def test_a_file_that_is_no_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    (tmp_path / "_kernel.so").write_text(content)
    assert f"as it does not load ({tmp_path / '_kernel.so'}: " in said(monkeypatch, tmp_path / "_kernel.so")


@pytest.mark.usefixtures("forgotten")
def test_another_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(_ctypes, "__file__", None) is None:
        pytest.skip("this Python has no library of its own to stand for another")
    assert "weft_version" in said(monkeypatch, Path(_ctypes.__file__))


@compiled
@pytest.mark.usefixtures("forgotten")
def test_a_binary_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("weft.solver.orders._kernel")
    assert found is not None and found.origin is not None
    built = binary.VERSION
    monkeypatch.setattr(binary, "VERSION", built + 1)
    assert f"as it is of version {built}, and this weft needs {built + 1}: install weft again;" in said(
        monkeypatch, Path(found.origin))
