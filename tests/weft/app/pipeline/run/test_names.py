"""Stages are called by the model's own modules."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.captured_models import made
from weft.app.pipeline.run.names import stage_names
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import CapturedCut


def named(captured: Captured, *befores: str) -> Sequence[tuple[str, str]]:
    """The stages of a cut before the first operator of each of these modules, or of that name."""
    return stage_names(CapturedCut(captured, [next(
        i for i, node in enumerate(captured.calls) if node.name == before or any(
            path == before for path, _ in (node.meta.get("nn_module_stack") or {}).values())) for before in befores]))


def test_a_stage_begins_and_ends_with_a_module_that_is_its_own() -> None:
    case = made("gpt", 2)
    captured = Captured.of(case.model, case.args)
    assert named(captured, "layers.1", "layers.2.wide") == (
        ("words", "layers.0"), ("layers.1", "layers.2.after"), ("layers.2.wide", "head"))


def test_a_cut_inside_the_innermost_module_names_the_operator() -> None:
    case = made("gpt", 2)
    captured = Captured.of(case.model, case.args)
    softmax = next(node.name for node in captured.calls if node.name.startswith("softmax"))
    assert named(captured, softmax)[1] == (f"layers.0:{softmax}", "head")


def test_an_operator_of_the_model_itself_has_its_own_name() -> None:
    case = made("skip", 2)
    captured = Captured.of(case.model, case.args, case.kwargs)
    assert named(captured, "inner.2")[0] == ("first", "add__1") and named(captured, "mul_1")[1] == ("mul_1", "last")
