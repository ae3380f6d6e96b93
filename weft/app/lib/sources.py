"""What the public functions can be given, and what a file holds that they are given the name of; light to import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, Union

if TYPE_CHECKING:
    from weft.models.spec.spec import Spec
    from weft.solver.problem import Problem

PathLike: TypeAlias = str | os.PathLike[str]
#: A solvable source: a model spec or ``weft.problem/1`` file, or the object read from one.
Source: TypeAlias = Union[PathLike, "Spec", "Problem"]
#: The number of micro-batches; with classes the class of each; with jobs one of these for each job.
MicroBatches: TypeAlias = int | Sequence[str] | Mapping[str, int | Sequence[str]]

#: Entries of a spec that not every command can follow, and what to do instead.
_ELSEWHERE = {
    "phases": "phases make it a family of plans, which weft family finds; leave them out for one plan",
    "parallel": "parallel divides the GPUs as a uniform grid, which weft solve searches; leave it out here",
}


def read_source(source: Source, *, with_phases: bool = False) -> Problem | Spec:
    """The spec or block problem that ``source`` is or names. Raises ``FormatError``, ``SpecError`` (also for phases,
    unless they are read ``with_phases``), or ``ValueError`` for what is neither."""
    from weft.solver.io.entries import FormatError
    from weft.solver.io.problem_files import load_problem
    from weft.solver.problem import Problem

    if isinstance(source, Problem):
        return source
    if not isinstance(source, str | os.PathLike):
        from weft.models.spec.spec import Spec

        if isinstance(source, Spec):
            return source if with_phases else without_entries(source, "phases")
        raise ValueError(f"the source is a {type(source).__name__}, it must be a model spec, a block problem, or the "
                         "name of a file with one")
    if Path(source).suffix.lower() == ".json":
        try:
            return load_problem(source)
        except FormatError:
            from weft.app.config_spec import is_config

            if not is_config(source):
                raise
            raise ValueError(f"{os.fspath(source)}: is a config.json, which says the model alone; name it in a spec "
                             f"(model: {{config: {Path(source).name}}}), or ask weft estimate") from None
    from weft.models.spec.spec import load_spec

    spec = load_spec(source)
    return spec if with_phases else without_entries(spec, "phases")


def names_schedule(source: object) -> TypeGuard[PathLike]:
    """Whether ``source`` is the name of a ``weft.schedule/1`` file. Raises ``FormatError`` for one that is no JSON."""
    from weft.solver.io.entries import read_json
    from weft.solver.io.schedule_files import SCHEDULE_FORMAT

    if not isinstance(source, str | os.PathLike) or Path(source).suffix.lower() != ".json":
        return False
    content = read_json(source)
    return isinstance(content, dict) and content.get("format") == SCHEDULE_FORMAT


def without_entries(spec: Spec, *names: str) -> Spec:
    """``spec``. Raises ``SpecError`` where it has an entry of these ``names``, of :data:`_ELSEWHERE`."""
    from weft.models.spec.spec import SpecError

    for name in names:
        if getattr(spec, name) is not None:
            raise SpecError(f"{spec.where}: {_ELSEWHERE[name]}")
    return spec
