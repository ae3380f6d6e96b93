"""How is a schedule written in the formats of other tools, and read back?

In: a schedule, or another tool's file. Out: that file, or a schedule. Features that a format cannot express are refused
in one sentence (:mod:`~weft.runtime.export.forms`). Of the rooms, only ``weft`` uses this one. One file a format:

- ``torch.distributed.pipelining``: its vocabulary (:mod:`~weft.runtime.export.torch_csv`), written
  (:mod:`~weft.runtime.export.torch_csv`), read (:mod:`~weft.runtime.export.torch_import`) and checked
  (:mod:`~weft.runtime.export.torch_check`);
- training tools: the schedules that each can run, in which order, its writer and reader
  (:mod:`~weft.runtime.export.tools`), with GPUs that compute together as ranks, and with whole backwards;
- Tessel (:mod:`~weft.runtime.export.tessel`);
- Perfetto's and Chrome's traces (:mod:`~weft.runtime.export.perfetto`).
"""
