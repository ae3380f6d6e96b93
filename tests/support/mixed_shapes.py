"""A worker some of whose messages have shapes that the plan does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tests.support.threads import Tracer
from weft.runtime.execute.executor import Parcel
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.program import Work


class Mixed(Tracer):
    """Results of as many numbers as their value says; those of every third block have a shape that is known."""

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        if (self.plan.vocabulary.block(what) or 0) % 3 == 0:
            return super().layout(what, target)
        return {"": Boundary((None, 2), torch.int64)}

    def message(self, what: Work, target: int) -> Callable[[Parcel], Parcel]:
        if all(boundary.is_known for boundary in self.layout(what, target).values()):
            return super().message(what, target)
        return lambda result: {"": result[""][:1, :1].expand(1 + int(result[""].flatten()[0]) % 50, 2)}
