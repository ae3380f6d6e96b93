"""Which operators are recomputed, which offloaded, and where is a chain cut, all decided together? The input is a
:class:`~weft.solver.placement.memory.plan.MemoryProblem`, the output a plan with a bound on its busiest resource.

``plan`` defines the meaning and the cost of a plan, ``layer_rule`` makes one by a published rule, ``plan_memory``
searches limit by limit, ``stage_oracle`` answers for one stage with the counts of ``classes``, by CP-SAT
(``stage_model``) if quick answers do not suffice.
"""
