"""``weft.pipeline``: from any module to a running pipeline, in one call.

:mod:`~weft.app.pipeline.build` is the call: every rank captures the model, rank 0 decides
(:mod:`~weft.app.pipeline.decide`: times of operators, places of cuts, costs of stages, a schedule), and all build their
part of the plan. What comes out is a :class:`~weft.app.pipeline.pipe.Pipeline`.
"""
