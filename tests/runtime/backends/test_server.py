"""Trials in processes of their own: what crashes, hangs or computes something else is refused, the next one goes on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from weft.runtime.backends import measuring as room
from weft.runtime.backends import registry
from weft.runtime.backends.build import captured_of
from weft.runtime.backends.candidates import SimilarParts, candidates_of
from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.measuring import Measuring, measuring
from weft.runtime.backends.registry import EAGER, Backend, BackendError


@pytest.fixture(scope="module")
def known() -> Iterator[dict[str, Backend]]:
    """All backends, with those that do what they should not; gone afterwards."""
    before = dict(registry.registered())
    import tests.support.bad_backends as own

    importlib.reload(own)
    yield dict(registry.registered())
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    torch.export.save(torch.export.export(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(),
                                          (torch.randn(3, 8),)), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module", params=[False, True], ids=["each in a process", "shared, as on a GPU"])
def own(known: dict[str, Backend], model: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Measuring]:
    kept = folder / str(request.param)
    with measuring(model, list(known.values()), folder=kept, limit=60.0, repeats=3, shared=request.param) as found:
        yield found


def first(model: Path, backend: Backend) -> SimilarParts:
    return candidates_of(UnitGraph(captured_of(model)), backend)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "why"), [
    ("crashes", r"crashed by signal 11 \(SIGSEGV\)"), ("wrong", "the largest error is 0.1 of the largest number"),
    ("other-shape", r"gives \(24,\) torch.float32 as result 0, eager \(3, 8\)"), ("no-numbers", "infinities or NaN"),
    ("raises", "raised RuntimeError: no kernel$"), ("exits", "ended by itself with status 3")])
def test_a_bad_backend_is_refused_and_the_next_goes_on(own: Measuring, known: dict[str, Backend], model: Path,
                                                       name: str, why: str) -> None:
    alike = first(model, known[name])
    found = own.part(known[name], alike.key, alike.places[0])
    assert found.refused is not None
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.refused)
    alike = first(model, known["good"])
    assert own.part(known["good"], alike.key, alike.places[0]).refused is None


@pytest.mark.slow
def test_what_hangs_ends_at_its_limit_and_is_not_kept(own: Measuring, known: dict[str, Backend], model: Path) -> None:
    assert own.folder is not None
    alike, before = first(model, known["hangs"]), len(list(own.folder.iterdir()))
    own.limit = 1.0
    try:
        found = own.part(known["hangs"], alike.key, alike.places[0])
    finally:
        own.limit = 60.0
    assert found.refused == "did not end within 1 s" and len(list(own.folder.iterdir())) == before


@pytest.mark.slow
def test_figures_are_kept_by_content_and_machine(own: Measuring, known: dict[str, Backend], model: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own.folder
    good, alike = known["good"], first(model, known["good"])
    found = own.part(good, alike.key, alike.places[0])
    again = Measuring(own.connection, folder, 60.0, False, 3)
    assert again.part(good, alike.key, alike.places[0]) == found == again.kept(good, alike.key) and again.tried == 0
    assert Measuring(own.connection, folder, 60.0, True, 3).kept(good, alike.key) is None
    assert again.kept(good, alike.key[::-1]) is None and again.kept(known[EAGER], alike.key) is None
    again.known.clear()
    monkeypatch.setattr(room, "machine_name", lambda: "another machine")
    assert again.kept(good, alike.key) is None


@pytest.mark.slow
def test_the_whole_is_run_beside_eager_and_a_wrong_part_of_it_is_refused(own: Measuring) -> None:
    found = own.whole([("good", (0, 1)), (EAGER, (2,))])
    assert found.refused is None and found.seconds > 0 and found.eager > 0
    assert "wrong numbers" in str(own.whole([("wrong", (0,)), (EAGER, (1, 2))]).refused)
    assert own.boundary(registry.registered()["good"], registry.registered()[EAGER])[0] >= 0


@pytest.mark.slow
def test_a_file_that_is_no_model_is_one_sentence(known: dict[str, Backend], tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"nothing")
    with pytest.raises(BackendError, match=r"cannot be measured: .*torch\.export\.load does not take it"), measuring(
            tmp_path / "m.pt2", [known[EAGER]], folder=None, limit=1.0):
        pass


def test_a_part_that_is_not_convex_and_a_backend_that_is_missing(known: dict[str, Backend], model: Path) -> None:
    with pytest.raises(BackendError, match="'torn' has a part that is not convex"):
        candidates_of(UnitGraph(captured_of(model)), known["torn"])
    usable, notes = registry.backends_named("good,absent", "cpu")
    assert [backend.name for backend in usable] == [EAGER, "good"]
    assert notes == ["absent: skipped, it needs a library that is not installed"]
