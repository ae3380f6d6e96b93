"""Short hashes of a plan's stages, so that a plan is not run with another model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.runtime.interface.factory import takes_session
from weft.runtime.plan.plan import Plan

if TYPE_CHECKING:
    from weft.runtime.interface.training import Training
    from weft.runtime.train.agreement import Allowed


class SignatureError(ValueError):
    """The stages are not those for which the plan was made."""


def signatures(training: Training) -> Mapping[str, str]:
    """Per stage of ``training``, a hash of its parameters' and buffers' names, shapes and types, and of its boundaries.
    Values do not count: a plan may train a model in any state."""
    found = {}
    for stage, module in training.stages.items():
        tensors = [*module.named_parameters(), *module.named_buffers()]
        facts: list[object] = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors]
        if isinstance(training.boundaries, Mapping):
            facts.append(sorted((name, list(b.shape), str(b.dtype)) for name, b in training.boundaries.items()))
        else:
            beside = training.boundaries[max(stage - 1, 0):stage + 1]
            facts.append([[list(shape), str(dtype)] for shape, dtype in beside])
        found[str(stage)] = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return found


def signed(plan: Plan, factory: Callable[[Plan, int], Training], allowed: Allowed | None = None,
           tell: Callable[[str], None] = lambda sentence: None) -> Plan:
    """``plan`` with the signatures of the stages that ``factory(plan, rank)`` returns for each rank, and with a REDUCE
    for each set of stages that share parameters.

    Raises :class:`SignatureError` for a factory that needs a session, as it cannot be called before the launch; for
    ties with missing parameters; and for stages that differ from the plan's, unless ``allowed``: then ``tell`` is
    called with the difference.
    """
    if takes_session(factory):
        raise SignatureError("stages whose function takes a session can only be made when the plan runs, so a plan "
                             "cannot be signed for them: leave --stages out")
    from weft.runtime.ranks.session import SessionError
    from weft.runtime.train.agreement import Allowed, facts_of, require_allowed, wiring_of
    from weft.runtime.train.tied_parameters import shared_stages

    found: dict[str, str] = {}
    facts = []
    try:
        for rank in range(len(plan.program.ranks)):
            training = factory(plan, rank)
            wiring_of(plan, rank, training)
            found.update(signatures(training))
            facts.append(facts_of(plan, training))
        require_allowed(plan, facts, allowed or Allowed(), tell)
    except SessionError as error:
        raise SignatureError(str(error)) from None
    return replace(plan.sharing(shared_stages(rank.holding for rank in facts)), signatures=found)


def require_signature(plan: Plan, training: Training) -> None:
    """Raise :class:`SignatureError` if ``plan`` has another signature for a stage of ``training``."""
    for stage, signature in signatures(training).items():
        wanted = plan.signatures.get(stage, signature)
        if signature != wanted:
            raise SignatureError(f"the plan was made for another model: stage {stage} has the signature {signature}, "
                                 f"the plan says {wanted}; plan again with --stages")
