"""Which training tools can run a schedule, how do they run it, and with which settings?

In: a schedule, or a tool's settings. Out: the schedule in the tool's own order and the tool's input, or the reason why
the tool cannot run it. ``TOOLS`` has every tool (:class:`~weft.runtime.export.tools.tool.Tool`) by name; each has a
file with its writer and reader: Megatron-LM, torchtitan, DeepSpeed, nnScaler; PyTorch's pipelining needs none.
:mod:`~weft.runtime.export.tools.tool` also has the tools' names of layers.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.export.tools.deepspeed import DEEPSPEED
from weft.runtime.export.tools.megatron import MEGATRON
from weft.runtime.export.tools.nnscaler import NNSCALER
from weft.runtime.export.tools.tool import Tool, ToolRun
from weft.runtime.export.tools.torchtitan import TORCHTITAN
from weft.runtime.export.torch_csv import require_outputs_in_order

__all__ = ["TOOLS", "ToolRun", "Tool"]

#: The order of a CSV (:mod:`weft.runtime.export.torch_csv`), of stages on one rank each, with backwards whole or split.
#: The computation of a stage on several GPUs is up to its module (``DTensor``): PyTorch's ranks are groups of them.
PYTORCH = Tool("pytorch", "PyTorch's pipelining", "the order, as CSV", splits=True, require=require_outputs_in_order)
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (MEGATRON, TORCHTITAN, PYTORCH, DEEPSPEED, NNSCALER)}
