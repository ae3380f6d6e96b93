"""Steps that read and make tensors, all by name: the common base of operator graphs, plans and communication
programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

#: An operator or a stage: it has a ``name`` and the names of its ``inputs``, and ``outputs``.
Step = TypeVar("Step")


class Dataflow(Generic[Step]):
    """``tensors`` by name, and :attr:`steps` in an executable order. ``word``: the term for a step, and the source of
    the tensors that it makes."""

    word: ClassVar[str] = "operator"

    if TYPE_CHECKING:
        @property
        def tensors(self) -> Mapping[str, Any]:
            """By name."""

    @property
    def steps(self) -> Sequence[Step]:
        """All of them."""
        raise NotImplementedError

    def made(self, step: Any) -> Iterable[str]:
        """The names of a step's outputs."""
        outputs: Iterable[str] = step.outputs
        return outputs

    def terms(self, name: str) -> tuple[str, ...]:
        """The tensors that ``name`` is the sum of: itself, for most."""
        return (name,)

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        """Steps by name."""
        every: Sequence[Any] = self.steps
        return {step.name: step for step in every}

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """The step that makes each tensor; external tensors have none."""
        return {name: step for step in self.by_name for name in self.made(self.by_name[step])}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """The steps that read each tensor, in order; none if it has no readers."""
        found: dict[str, list[str]] = {name: [] for name in self.tensors}
        every: Sequence[Any] = self.steps
        for step in every:
            for name in dict.fromkeys(step.inputs):
                found.setdefault(name, []).append(step.name)
        return {name: tuple(readers) for name, readers in found.items()}

    @property
    def given(self) -> dict[str, Any]:
        """The external tensors, by name."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.source != self.word}

    def require_made(self, error: type[ValueError]) -> set[str]:
        """All tensors: external ones, and those made by a step. Raises ``error`` for duplicate or undefined names."""
        known, word = set(self.given), self.word
        seen: set[str] = set()
        every: Sequence[Any] = self.steps
        for step in every:
            if step.name in seen:
                raise error(f"the {word} name {step.name!r} is used twice")
            seen.add(step.name)
            for term in (term for name in step.inputs for term in self.terms(name)):
                if term not in known:
                    raise error(f"{word} {step.name!r} reads {term!r}, which nothing before it makes")
            for name in step.outputs:
                if name in known or name not in self.tensors:
                    raise error(f"{word} {step.name!r} makes {name!r}, which is made twice or is no tensor")
                known.add(name)
        return known
