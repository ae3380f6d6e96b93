"""docs/FORMATS.md names every format that weft reads or writes, and every field that a schema has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import weft
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "FORMATS.md").read_text()
ROOMS = ("solver", "models", "runtime", "weft")


def fields(schema: Any) -> Iterator[str]:
    """The names of all fields in ``schema``."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        yield from properties if isinstance(properties, Mapping) else ()
        for part in schema.values():
            yield from fields(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from fields(part)


def test_every_format_is_on_the_page() -> None:
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    formats = {found for path in sources for found in re.findall(r"\"(weft\.[a-z_-]+/\d+)\"", path.read_text())}
    assert len(formats) > 12
    assert {found for found in formats if found not in PAGE and f"`/{found[-1]}`" not in PAGE} == set()
    assert {found for found in re.findall(r"`(weft\.[a-z_-]+/\d+)`", PAGE)} <= formats


@pytest.mark.parametrize("of", ["problem", "schedule", "placement", "memory_plans"])
def test_every_field_of_a_schema_is_in_its_section(of: str) -> None:
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"weft.{of}/"))
    if of == "schedule":  # it holds a problem
        text += next(part for part in section if part.startswith("weft.problem/"))
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]*`", text))))
    assert set(fields(weft.schema(of))) - words == set()


def test_the_page_says_which_schemas_there_are() -> None:
    assert f"`weft schema [{' | '.join(weft.SCHEMAS)}]`" in PAGE


def test_the_fields_of_a_spec_are_on_the_page() -> None:
    """Those of a spec's own sections; layers and families are for ``weft schema``."""
    definitions = weft.schema("spec")["$defs"]
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]*`", PAGE))))
    for section in ("Cluster", "TrainingRun", "Inference", "PlacementSection", "LayerSpec"):
        assert set(definitions[section]["properties"]) - named == set()
