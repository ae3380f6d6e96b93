"""``weft.pipeline``: from any module to a running pipeline, in one call.

:mod:`~weft.app.pipeline.build` is the call: every rank captures the model, all measure and rank 0 decides
(:mod:`~weft.app.pipeline.planning.decide`), and all build their part of the plan. The machine is what its user says
(:mod:`~weft.app.pipeline.planning.spec`) or what it shows (:mod:`~weft.app.pipeline.planning.machine`); cuts are
proposed on single operators (:mod:`~weft.app.pipeline.planning.row`), measured
(:mod:`~weft.app.pipeline.planning.measuring`) and made block problems of (:mod:`~weft.app.pipeline.planning.problems`).
What comes out is a :class:`~weft.app.pipeline.run.pipe.PipelineEngine`.
"""
