"""Among steady states of one period, one with less latency."""

from __future__ import annotations

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.periodic import Periodic, coarser, fits_pools, retime
from weft.solver.relations.min_dist import least_distances


def shorten_latency(found: Periodic, budget: Budget, *, deterministic: float) -> Periodic:
    """Among the schedules of the same period, one with the least latency found in ``deterministic`` seconds.

    Latency (first start to last end of one micro-batch) is the share of warm-up and cool-down in the makespan of a
    rigid repetition: (N - 1) T + latency.
    """
    denominator = found.period.denominator
    instance = found.instance.refined(denominator)
    period = int(found.period * denominator)
    lags = least_distances(instance, period)
    if lags is None:
        raise AssertionError("least distances refute a period that was achieved")
    model = ModuloModel(instance, period, lags)
    model.minimise_latency()
    model.hint(found)
    outcome = run(model.model, budget, deterministic=deterministic, relaxation=False)
    if not outcome.found:
        return found
    shorter = retime(instance, period, model.starts(outcome.solver))
    result = coarser(shorter, found.instance, denominator, found.micro_batches_per_period)
    return result if fits_pools(result) and (result.period, result.latency) < (found.period, found.latency) else found
