"""How long does each operator take? An operator graph in; seconds of every operator's passes out, and where each
comes from.

Times are measured on a user's machine (:mod:`weft.models.times.measured_times`), read from a profile
(:mod:`weft.models.times.profiles`, :mod:`weft.models.times.profile_times`) or modelled
(:mod:`weft.models.times.roofline`).
"""

from weft.models.times.operator_times import OperatorTime, OperatorTimes, Origin

__all__ = ["OperatorTime", "OperatorTimes", "Origin"]
