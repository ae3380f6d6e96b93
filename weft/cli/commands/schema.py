"""print the JSON Schema of a file format

Editors with a YAML language server complete and check specs with it.

example:
  weft schema > weft.schema.json
  weft schema schedule
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from weft.app.lib.arguments import Option
from weft.cli.lib.command import GOOD, Call, command

#: What :func:`schema` knows.
SCHEMAS = ("spec", "problem", "schedule", "placement", "memory_plans", "placed_step")


def schema(of: Annotated[str, Option(
        "which file: a model spec (the default), a block problem, a schedule, or what weft place writes",
        choices=SCHEMAS)] = "spec") -> Mapping[str, Any]:
    """The JSON Schema of a file: ``of`` is one of :data:`SCHEMAS`, a model spec by default.

    Raises ``ValueError`` for anything else.
    """
    if of not in SCHEMAS:
        raise ValueError(f"there is no schema of {of!r}, there are those of {', '.join(SCHEMAS)}")
    if of == "spec":
        from weft.models.spec.spec import spec_schema

        return spec_schema()
    if of in ("placement", "memory_plans", "placed_step"):
        from weft.app.place.schemas import PLACEMENT_SCHEMAS

        return PLACEMENT_SCHEMAS[f"weft.{of}/1"]
    from weft.solver.io.schemas import problem_schema, schedule_schema

    return problem_schema() if of == "problem" else schedule_schema()


@command(schema)
def run(call: Call) -> int:
    print(json.dumps(call(), indent=1))
    return GOOD
