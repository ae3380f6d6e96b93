"""PyTorch's pipelining: the order of a CSV, of stages on one rank each, with backwards whole or split.

Writer and reader are :mod:`weft.runtime.export.torch_csv` and :mod:`weft.runtime.export.torch_import`. The computation
of a stage on several GPUs is up to its module (``DTensor``): PyTorch's ranks are groups of them.
"""

from __future__ import annotations

from weft.runtime.export.tools.tool import Tool
from weft.runtime.export.torch_csv import require_outputs_in_order

PYTORCH = Tool("pytorch", "PyTorch's pipelining", "the order, as CSV", splits=True, require=require_outputs_in_order)
