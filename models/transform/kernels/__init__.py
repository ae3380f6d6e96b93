"""What operators compute, in numpy: exact references for plans, and what their gradients read.

A kernel computes a part of an operator as it computes the whole: it sees the arrays of its part, the sizes of the names
in it and in the whole, and where the part begins. :func:`operator` registers a user's own. One file has the kernels of
one family of operators, and puts them into :data:`KERNELS`.
"""

from weft.models.transform.kernels import (  # noqa: F401
    along,
    attention,
    convolutions,
    elementwise,
    indices,
    losses,
    made,
    norms,
    pieces,
    pointwise,
    softmax,
    sums,
    tables,
    updates,
)
from weft.models.transform.kernels.registry import (
    KERNELS,
    Array,
    Call,
    Gradient,
    Kernel,
    forget,
    kernel,
    operator,
    own_annotation,
)

__all__ = ["KERNELS", "Array", "Call", "Gradient", "Kernel", "forget", "kernel", "operator", "own_annotation"]
