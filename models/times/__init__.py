"""Times of operators. An operator graph in; seconds of every operator's passes out, each with its origin.

Times are measured on a user's machine (:mod:`weft.models.times.measured_times`), read from a profile
(:mod:`weft.models.times.profiles`, :mod:`weft.models.times.profile_times`) or modelled
(:mod:`weft.models.times.roofline`).
"""

from weft.models.times.operator_times import OperatorTime, OperatorTimes, Origin

__all__ = ["OperatorTime", "OperatorTimes", "Origin"]
