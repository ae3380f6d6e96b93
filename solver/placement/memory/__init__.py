"""Which operators are recomputed, which offloaded, and where is a chain cut, all decided together? A
:class:`~weft.solver.placement.memory.plan.MemoryProblem` comes in, a plan with a bound on its busiest resource
goes out.

``plan`` says what a plan means and costs, ``layer_rule`` makes one by a published rule, ``plan_memory`` searches limit
by limit, ``stage_oracle`` answers for one stage with the counts of ``classes``, by CP-SAT (``stage_model``) where quick
answers do not do.
"""
