"""PyTorch's pipelining: the order of a CSV, of stages that each lie on one rank, with backwards whole or split.

Writer and reader are :mod:`weft.runtime.export.torch_csv` and :mod:`weft.runtime.export.torch_import`. What a stage
does on several GPUs is the matter of its module (``DTensor``): PyTorch's ranks are groups of them.
"""

from __future__ import annotations

from weft.runtime.export.tools.tool import Tool
from weft.runtime.export.torch_csv import require_outputs_in_order

PYTORCH = Tool("pytorch", "PyTorch's pipelining", "the order, as CSV", splits=True, require=require_outputs_in_order)
