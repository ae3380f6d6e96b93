"""Rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Kernel, of_input


def _rows(ids: Array, name: str, call: Call) -> tuple[Array, Array]:
    """Which rows of this part are looked up, and which of the indices are of it."""
    own = ids.astype(int) - call.starts.get(name, 0)
    here = (own >= 0) & (own < call.sizes[name])
    return np.where(here, own, 0), here


def _embedding(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    rows, here = _rows(arrays[1], call.annotation.inputs[0][0][0], call)
    return (arrays[0][rows] * here[..., None],)


def _embedding_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, ids = arrays
    rows, here = _rows(ids, call.annotation.outputs[0][0][0], call)
    here = here & (ids != call.attributes.get("padding", -1))
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    np.add.at(made, rows, gradient * here[..., None])
    return (made,)


KERNELS.update({
    "embedding": Kernel(_embedding, of_input("embedding_grad", ("i1",))),
    "embedding_grad": Kernel(_embedding_grad),
})
