"""Programs of captured PyTorch modules: how each aten operator splits, from its shapes and arguments.

Matrix products, projections, convolutions, embeddings, attention, norms, softmax, pointwise operators, reductions and
views become operators with an annotation; a bias is an operator of its own, so that a product whose sum is cut adds it
once. A dimension that a view merges or cuts is cut as far as its parts stay in one piece. An operator of a user's own
library splits as the annotation says that is registered under its name (:func:`weft.plans.operator`). What is not known
is frozen: every device calls all of it, and a note says so.

One file has the rules of one family of operators; :func:`weft.models.transform.captured.writer.rule` registers them.
"""

from weft.models.transform.captured import indices, pieces, pointwise, products, reductions  # noqa: F401
from weft.models.transform.captured.writer import RULES, program_of, read_program

__all__ = ["RULES", "program_of", "read_program"]
