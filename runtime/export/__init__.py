"""How is a schedule written in the formats of other tools, and read back?

In: a schedule, or another tool's file. Out: that file, or a schedule. Features that a format cannot express are refused
in one sentence (:mod:`~weft.runtime.export.forms`). One file per format:

- ``torch.distributed.pipelining``: its vocabulary (:mod:`~weft.runtime.export.torch_csv`), written
  (:mod:`~weft.runtime.export.torch_csv`), read (:mod:`~weft.runtime.export.torch_import`) and checked
  (:mod:`~weft.runtime.export.torch_check`);
- training tools (:mod:`~weft.runtime.export.tools`): the schedules and orders that each supports, its writer and
  reader, with groups of GPUs as ranks, and full backwards;
- Tessel (:mod:`~weft.runtime.export.tessel`);
- Perfetto's and Chrome's traces (:mod:`~weft.runtime.export.perfetto`).
"""
