"""``weft.pipeline``: checks, capture, planning and construction of the running pipeline."""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten

from weft.app.pipeline.lib.arguments import arguments_of, require_compatible, require_plan, signature_of
from weft.app.pipeline.lib.dividing import in_shares, require_plan_of_shares
from weft.app.pipeline.lib.mesh import places_of, require_unwrapped
from weft.app.pipeline.lib.meta import numbers_for, real
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import autocasting, lowered, require_types, typed
from weft.app.pipeline.lib.running import require_compile
from weft.app.pipeline.lib.split import Model, divided, divided_alike, require_split, with_values
from weft.app.pipeline.planning.backends import require_backends
from weft.app.pipeline.planning.decide import Example, decide
from weft.app.pipeline.planning.frozen import require_backwards
from weft.app.pipeline.planning.memory.planned import require_memory_plan, treated_as_planned
from weft.app.pipeline.run.feeding import target_spec
from weft.app.pipeline.run.pipe import PipelineEngine
from weft.app.pipeline.run.shapes import Recapture
from weft.runtime.backends.stages import stages_by
from weft.runtime.by_modules.trace import trace
from weft.runtime.captured.capture_cache import cached_capture
from weft.runtime.captured.captured import Captured, CaptureError, is_on_meta
from weft.runtime.captured.cut import BATCH
from weft.runtime.captured.division import Goal, InputLeaf, ModelDivision
from weft.runtime.captured.inputs.batch import BatchLayout, micro_batch
from weft.runtime.captured.inputs.batch_dims import Dims, dims_of, leaves_of, positional_names, target_dim
from weft.runtime.captured.loss import learning, require_own
from weft.runtime.captured.materials import Materials
from weft.runtime.captured.metadata_reads import used_parameters
from weft.runtime.captured.purity import Purity
from weft.runtime.checkpoint.weights import named_tensors
from weft.runtime.plan.plan import Plan
from weft.runtime.ranks.session import Session, SessionError, join
from weft.runtime.ranks.within import join_within
from weft.runtime.ranks.words import some
from weft.runtime.replay.stepping import THEIRS, stages_of
from weft.runtime.train.deferred import is_hooked
from weft.runtime.transports.registry import device_for
from weft.solver.io.writing import cache_folder

#: The session of this process that created the process group, if there is one.
_LAUNCHED: list[Session] = []


def make_pipeline(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None,
                  options: PipelineOptions) -> PipelineEngine:
    """See :func:`weft.pipeline`."""
    stack = ExitStack()
    session = stack.enter_context(_joined(options))

    def close(error: BaseException | None) -> None:
        atexit.unregister(at_exit)
        if not stack.__exit__(None if error is None else type(error), error, None if error is None
                              else error.__traceback__) and error is not None:
            raise error

    def at_exit() -> None:
        if getattr(sys, "last_value", None) is not None:  # the script ended by an error that Python has printed
            session.watch.give_up(f"the script ended by {type(sys.last_value).__name__}: {sys.last_value}")
        session.watch.ended = True
        if session.is_guest and not torch.distributed.is_initialized():
            session.watch.finish()  # the group's owner has destroyed it, and the pipeline with it
        else:
            pipe.close()

    try:
        pipe = _made(session, close, module, *arguments_of(args, kwargs), options)
    except (CaptureError, ValueError) as error:
        close(error if isinstance(error, SessionError) else SessionError(
            (str(error) or type(error).__name__).splitlines()[0]))
        raise
    except BaseException as error:
        close(error)
        raise
    atexit.register(at_exit)
    session.rest(THEIRS)
    return pipe


@contextmanager
def _joined(options: PipelineOptions) -> Iterator[Session]:
    """The pipeline's ranks: inside an existing process group, else all that torchrun has started."""
    if _LAUNCHED:
        raise CaptureError("a pipeline that has joined the ranks itself is running: close it first; for several beside "
                           "each other call torch.distributed.init_process_group before")
    places, device = places_of(options), device_for(options.transport)
    if places.numbers is not None:
        with join_within(places.numbers, options.timeout, device, options.transport, places.copies,
                         peers=places.peers) as session:
            yield session
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        script = shlex.join(["torchrun", "--standalone", "--nproc-per-node=2", *sys.argv[:1]])
        raise CaptureError(f"weft.pipeline runs under torchrun, one process a rank; use: {script}")
    with join(options.timeout, device, transport=options.transport, replicas=places.copies) as session:
        _LAUNCHED.append(session)
        try:
            yield session
        finally:
            _LAUNCHED.clear()


def _made(session: Session, close: Callable[[BaseException | None], None], module: nn.Module, args: tuple[Any, ...],
          kwargs: dict[str, Any], options: PipelineOptions) -> PipelineEngine:
    _require_plain(module, options, session.device)
    session.agree_on(options.settings(), "the arguments of weft.pipeline")
    session.watch.doing("capturing the model")
    count, loss = options.micro_batches, options.loss
    full = {} if options.dtype is None else lowered(module, options.dtype, learning(loss))
    args, kwargs = typed((args, kwargs), options.dtype)
    leaves = leaves_of(module, args, kwargs)
    dims = dims_of(options.batch_dims, leaves, tree_flatten((args, kwargs))[0])
    part_args, part_kwargs = micro_batch((args, kwargs), count, dims)
    part_args, part_kwargs = real((part_args, part_kwargs), session.device)
    materials = None if not is_on_meta(module) else Materials(
        module, session.device, options.state, options.materialise, {name: v.dtype for name, v in full.items()})
    captured = _captured(module, [micro_batch((args, kwargs), count, dims, i) for i in range(count)], options, session)
    unread = captured.unread()
    looked = used_parameters(module, part_args, part_kwargs) if unread and materials is None else set()
    if (lost := [name for name in unread if name not in looked]) and not options.allow_unread:
        raise CaptureError(f"no operator reads the parameters {some(lost, 3)}: freeze them with requires_grad_(False), "
                           "or pass allow_unread=True, and they stay as they are")
    if isinstance(captured, Captured):
        captured.require_fixed()
        captured = captured if options.backends is None else stages_by(captured, ())
    purity = Purity(captured, options.light) if isinstance(captured, Captured) else None
    _require_equal(session, captured, signature_of((args, kwargs, options.target)), loss,
                   None if materials is None else materials.facts)
    goal = Goal(loss, None if loss is None else target_spec(options.target))
    example = _example(captured, part_args, part_kwargs, None if loss is None else options.target, goal, count,
                       dims, target_dim(options.batch_dims))
    with autocasting(options.autocast, session.device):
        example = with_values(example, captured)
    made = decide(captured, purity, example, goal, session, options, materials)
    bare = captured
    captured = treated_as_planned(captured, made.plan, example.leaves, dims)
    seed = session.everywhere(torch.initial_seed() if options.seed is None else options.seed, "agreeing on a seed")[0]
    cut, notes = divided(captured, made.places, purity), made.notes
    if isinstance(captured, Captured):
        notes = (*notes, *captured.fixed)
        if session.process(session.rank) == 0:
            for sentence in captured.fixed:
                warnings.warn(sentence, stacklevel=4)
    if unread:
        notes = (*notes, f"no operator reads the numbers of {some(unread, 3)}, which stay as they are")
    require_backwards(cut, made.plan)
    if materials is not None:
        session.watch.doing("giving this rank's part of the model its numbers")
        notes = (*notes, *materials.notes)
        assert isinstance(captured, Captured)
        captured, full = numbers_for(captured, cut, stages_of(made.plan, session.rank), materials, session.rank == 0)
        cut = divided(captured, made.places, Purity(captured, options.light))
    if options.tensor_parallel is not None:
        assert isinstance(captured, Captured)
        if captured.treatment is not None:
            raise CaptureError("the model recomputes, or the plan does, which tensor_parallel does not go with: leave "
                               "one of them out")
        captured = in_shares(captured, options)
        cut = divided(captured, made.places, Purity(captured, options.light))
        notes = (*notes, f"stages were measured whole, before {session.peers} ranks each divided their parameters")
    looks = [leaf.to("meta") if isinstance(leaf, Tensor) else leaf for leaf in example.leaves]
    inputs = BatchLayout([BATCH + node.name for node in captured.inputs], leaves, tree_flatten((args, kwargs))[1],
                         looks,
                         dims, count, positional_names(module))

    def recut(plan: Plan, places: Sequence[int]) -> tuple[ModelDivision, Recapture]:
        if plan is not made.plan and (materials is not None or not isinstance(bare, Captured)):
            raise CaptureError("plans are switched of models that are exported with their numbers: not of those on the "
                               "meta device, and not under split")
        own = cut if plan is made.plan else divided(
            treated_as_planned(bare, plan, example.leaves, dims), places, purity)
        require_backwards(own, plan)

        def recapture(args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> ModelDivision:
            if materials is not None:
                raise CaptureError("the model was made on the meta device, and is captured once: give batches as the "
                                   "example, or build the model with its numbers")
            parts = [micro_batch((args, kwargs), count, dims, i) for i in range(count)]
            again = _captured(module, parts, options, session)
            if isinstance(again, Captured):
                again.require_fixed()
            again = treated_as_planned(again, plan, tree_flatten(parts[0])[0], dims)
            return divided_alike(again, own, Purity(again, options.light) if isinstance(again, Captured) else None)

        return own, recapture

    pipe = PipelineEngine(session, close, recut, replace(made, notes=notes), replace(goal, seed=seed), inputs, options,
                          full)
    if materials is None and options.state is not None:
        pipe.load_state_dict(options.state)
    return pipe


def _captured(module: nn.Module, parts: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], options: PipelineOptions,
              session: Session) -> Model:
    """The model by an export on the first of these micro-batches, cached or new, or traced by a run of all."""
    with autocasting(options.autocast, session.device):
        if options.split is not None:
            return trace(module, parts, options.split)
        args, kwargs = real(parts[0], session.device)
        return cached_capture(module, args, kwargs, session.device, cache_folder(options.cache))


def _require_plain(module: object, options: PipelineOptions, device: torch.device) -> None:
    """Refuse invalid arguments."""
    micro_batches, loss = options.micro_batches, options.loss
    if not torch.is_grad_enabled():
        raise CaptureError("weft.pipeline measures gradients, which are off under torch.no_grad(): call it outside")
    if not isinstance(module, nn.Module):
        raise CaptureError(f"the model is {type(module).__name__}, it must be a torch.nn.Module")
    require_unwrapped(module)
    require_plan_of_shares(module, options)
    if type(micro_batches) is not int or micro_batches < 1:
        raise CaptureError(f"micro_batches is {micro_batches!r:.60}, it must be a whole number of at least 1")
    if options.memory is not None and (not isinstance(options.memory, int | float) or options.memory <= 0):
        raise CaptureError(f"memory is {options.memory!r:.60}, it must be a number of bytes")
    require_memory_plan(options)
    require_backends(module, options)
    cache_folder(options.cache)
    if options.seed is not None and type(options.seed) is not int:
        raise CaptureError(f"seed is {options.seed!r:.60}, it must be a whole number")
    if options.defer not in ("worth", "all"):
        raise CaptureError(f"defer is {options.defer!r:.60}, it must be 'worth' or 'all'")
    require_plan(options)
    require_split(module, options)
    if loss is not None and not callable(loss):
        raise CaptureError(f"loss is {type(loss).__name__}, it must be a function of the result and the target")
    require_types(options.dtype, options.autocast)
    require_compile(options.compile)
    require_compatible(options)
    require_own(module, loss)
    for (name, *_), tensor, _ in named_tensors(module, loss if isinstance(loss, nn.Module) else None):
        if is_lazy(tensor):
            raise CaptureError(f"{name} has no shape yet, as of a lazy layer: run the model once on a batch before "
                               "weft.pipeline")
        if tensor._post_accumulate_grad_hooks:
            raise CaptureError(f"{name} has a hook that follows its gradient, which would run once a micro-batch: do "
                               "in the training loop, after step, what it does")
        moved = [each for each in ("dtype", "fully_shard", "tensor_parallel") if getattr(options, each)]
        if is_hooked(tensor) and moved:
            raise CaptureError(f"{name} has a hook on its gradient, which with {moved[0]} is that of another tensor: "
                               "leave one of them out")
        if not tensor.is_meta and tensor.device.type != device.type:
            raise CaptureError(f"{name} is on {tensor.device}, but this rank runs on {device}: move the model there "
                               "before weft.pipeline")


def _require_equal(session: Session, captured: Model, example: object, loss: object, materials: object) -> None:
    """Refuse ranks that have built another model, or the same with other numbers; ``materials`` stand for those that
    are to come."""
    facts = {"the example's shapes and types": repr(example),
             "the model's operators": captured.digest,
             "the model's values": (_values(captured.model), materials),
             "the loss's values": _values(loss) if isinstance(loss, nn.Module) else None}
    everywhere = session.everywhere(facts, "comparing the models")
    hints = {"the example's shapes and types": "give an example of one kind on all ranks",
             "the model's operators": "build the same model, from the same versions of its code, on all ranks; if its "
                                     "forward goes through a set of names, start them with PYTHONHASHSEED=0",
             **dict.fromkeys(("the model's values", "the loss's values"), "call torch.manual_seed with one number "
                             "before the model is built, or load one state dict on all ranks")}
    for what, hint in hints.items():
        for process, other in enumerate(everywhere):
            if other[what] != everywhere[0][what]:
                raise SessionError(f"{what} differ on rank {process} from those on rank 0: {hint}")


def _values(model: nn.Module) -> str:
    """What tells two states apart."""
    total = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and not value.is_meta:
            whole = value.detach().to_dense()
            wide = (torch.view_as_real(whole) if whole.is_complex() else whole).reshape(-1).double()
            total.update(f"{name} {float(wide.sum())!r} {float(torch.linalg.vector_norm(wide))!r}".encode())
    return total.hexdigest()


def _example(captured: Model, args: Any, kwargs: Any, target: Any, goal: Goal, micro_batches: int,
             dims: Dims, dim: int | None) -> Example:
    leaves = tree_flatten((args, kwargs))[0]
    if len(leaves) != len(captured.inputs):
        raise CaptureError(f"the model was captured with {len(captured.inputs)} inputs, but the example has "
                           f"{len(leaves)}: give each argument by position or by name, as the model takes them")
    inputs: Sequence[InputLeaf] = captured.inputs
    named = {BATCH + node.name: leaf for node, leaf in zip(inputs, leaves, strict=True)
             if isinstance(leaf, Tensor)}
    if target is None:
        return Example(leaves, None, named, dims)
    leaves_of_target = tree_flatten(target)[0]
    for leaf in leaves_of_target:
        if not isinstance(leaf, Tensor) or (dim is not None and leaf.dim() <= dim):
            raise CaptureError(f"target is {type(leaf).__name__}, or has no dimension {dim}: give a tensor with an "
                               "entry for each sample, or batch_dims={'target': None}")
    parts = tree_flatten(micro_batch(target, micro_batches, (dim,) * len(leaves_of_target)))[0]
    return Example(leaves, parts, {**named, **dict(zip(goal.names, parts, strict=True))}, dims)
