"""Which training tools can run a schedule, how do they run it, and with which settings?

In: a schedule, or a tool's settings. Out: the schedule under the tool's own order, or the reason why it cannot run it;
the tool's input. ``TOOLS`` has every tool (:class:`~weft.runtime.export.tools.tool.Tool`) by name; each has a file,
with its writer and reader: Megatron-LM (:mod:`~weft.runtime.export.tools.megatron`,
:mod:`~weft.runtime.export.tools.megatron_arguments`), torchtitan, PyTorch's pipelining, DeepSpeed, nnScaler.
:mod:`~weft.runtime.export.tools.tool` has their names of layers.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.runtime.export.tools.deepspeed import DEEPSPEED
from weft.runtime.export.tools.megatron import MEGATRON
from weft.runtime.export.tools.nnscaler import NNSCALER
from weft.runtime.export.tools.pytorch import PYTORCH
from weft.runtime.export.tools.tool import Tool, ToolRun
from weft.runtime.export.tools.torchtitan import TORCHTITAN

__all__ = ["TOOLS", "ToolRun", "Tool"]

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (MEGATRON, TORCHTITAN, PYTORCH, DEEPSPEED, NNSCALER)}
