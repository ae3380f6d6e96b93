"""Programs run on virtual ranks in numpy, in double precision, including chunks: the reference for the passes.

Casts change no values here: differences in rounding would obscure whether two programs are equivalent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.communication.chunks import chunk_places
from weft.models.communication.functions import function_named
from weft.models.communication.program import (
    CommunicationError,
    CommunicationProgram,
    CommunicationTensor,
    Overlap,
    ProgramStage,
)
from weft.models.communication.rebuilding import in_order

Array: TypeAlias = NDArray[Any]
#: Each rank's part of a tensor, by tensor.
Values: TypeAlias = dict[str, list[Array]]


def random_values(program: CommunicationProgram, seed: int = 0) -> dict[str, Any]:
    """Random values for all inputs of a program: whole tensors; for local ones a list with one for each rank.

    States are positive, like means of squares; a scalar is 3, like a step count.
    """
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, tensor in program.given.items():
        numbers = [draw.standard_normal(tensor.shape) for _ in range(program.ranks)]
        if tensor.layout == "local":
            found[name] = numbers
        elif tensor.shape == ():
            found[name] = np.array(3.0)
        else:
            found[name] = np.abs(numbers[0]) if tensor.source == "state" else numbers[0]
    return found


def run(program: CommunicationProgram, given: Mapping[str, Any]) -> Values:
    """Every rank's part of each tensor, from the values ``given`` by the names of inputs, parameters and states.

    A local one is given as a list with one for each rank, all others whole. Raises
    :class:`~weft.models.communication.program.CommunicationError` if one is missing, or has another shape.
    """
    values: Values = {name: lay_out(tensor, given, program.ranks) for name, tensor in program.given.items()}
    for unit in in_order(program):
        if isinstance(unit, Overlap):
            _run_chunks(program, unit, values)
            continue
        for leaf in unit.leaves():
            values[leaf.outputs[0]] = _leaf(leaf, program, values, _places(program, leaf))
    return values


def results(program: CommunicationProgram, values: Values) -> dict[str, Any]:
    """Outputs by name, and parameters and states after the step, whole (local ones: for each rank)."""
    found = {name: put_together(program.tensors[name], values[name]) for name in program.outputs}
    found |= {f"next {old}": put_together(program.tensors[made], values[made]) for made, old in program.carried.items()}
    return found


def lay_out(tensor: CommunicationTensor, given: Mapping[str, Any], ranks: int) -> list[Array]:
    """Each rank's part of a given tensor."""
    if tensor.name not in given:
        raise CommunicationError(f"no value is given for {tensor.name!r}")
    value = given[tensor.name]
    each = [np.asarray(one, float) for one in (value if tensor.layout == "local" else [value] * ranks)]
    wrong = [one.shape for one in each if one.shape != tensor.shape]
    if wrong or len(each) != ranks:
        raise CommunicationError(f"{tensor.name!r} has the shape {tensor.shape}, not {wrong[0]}" if wrong else
                                 f"{tensor.name!r} is local: give one value for each of {ranks} ranks")
    return _sliced(each, tensor.axis) if tensor.layout == "sliced" else each


def put_together(tensor: CommunicationTensor, held: Sequence[Array]) -> Any:
    """The whole tensor from all ranks' parts; for a local one, the list."""
    if tensor.layout == "local":
        return list(held)
    if tensor.layout == "replicated":
        return held[0]
    return np.concatenate(held, tensor.axis or 0).reshape(tensor.shape)


def dropped(places: Array, rate: float, seed: int) -> Array:
    """Dropout factors of elements by their position in the whole tensor: 0 with probability ``rate``, else 1 / (1 -
    ``rate``).

    Positions are hashed (the finalizer of SplitMix64, Steele et al., OOPSLA 2014), so that a rank can compute them for
    any slice.
    """
    with np.errstate(over="ignore"):
        bits = places.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    share = (bits >> np.uint64(11)).astype(float) / 2**53
    return (share >= rate) / (1.0 - rate)


# -- one stage ----------------------------------------------------------------------------------------------------


def _leaf(leaf: ProgramStage, program: CommunicationProgram, values: Mapping[str, list[Array]],
          places: list[Array] | None, *, in_chunks: bool = False) -> list[Array]:
    """Each rank's part of the output of a stage that is not fused; ``places``: positions of its elements, if needed."""
    inputs = [values[name] for name in leaf.inputs]
    given, made = [program.tensors[name] for name in leaf.inputs], program.tensors[leaf.outputs[0]]
    ranks = range(program.ranks)
    first = inputs[0]
    arguments = dict(leaf.attributes)
    match leaf.kind:
        case "matmul":
            return [np.matmul(inputs[0][i], inputs[1][i]) for i in ranks]
        case "pointwise":
            compute = function_named(arguments.pop("function")).compute
            return [np.asarray(compute(np, *(operand[i] for operand in inputs), **arguments)) for i in ranks]
        case "norm":
            squares = [np.sum(array * array) for array in first]
            summed = [sum(squares)] * program.ranks if given[0].layout == "sliced" else squares
            return [np.sqrt(np.asarray(square)) for square in summed]
        case "dropout":
            assert places is not None
            return [first[i] * dropped(places[i], arguments["rate"], arguments["seed"]) for i in ranks]
        case "update":
            return inputs[1]
        case "all_reduce":
            return [_sum(first)] * program.ranks
        case "reduce_scatter":
            return _sliced([_sum(first)] * program.ranks, made.axis)
        case "all_gather":
            whole = np.concatenate(first, given[0].axis or 0)
            return [whole if in_chunks else whole.reshape(made.shape)] * program.ranks
        case "reduce":
            return [_sum(first) if i == arguments["root"] else np.zeros_like(first[i]) for i in ranks]
        case "broadcast":
            return [first[arguments["root"]]] * program.ranks
        case "slice":
            return _sliced(first, made.axis)
        case _:  # cast and send
            return first


def _sum(arrays: Sequence[Array]) -> Array:
    return np.asarray(np.sum(np.stack(arrays), 0))


def _sliced(whole: Sequence[Array], axis: int | None) -> list[Array]:
    """Rank i's part of a tensor that it has whole."""
    rows = [array.reshape(-1) for array in whole] if axis is None else whole
    return [np.split(array, len(rows), axis or 0)[i] for i, array in enumerate(rows)]


def _places(program: CommunicationProgram, leaf: ProgramStage) -> list[Array] | None:
    """The position in the whole tensor of each element of a rank's part of a dropout's output."""
    if leaf.kind != "dropout":
        return None
    tensor = program.tensors[leaf.outputs[0]]
    whole = [np.arange(tensor.elements).reshape(tensor.shape)] * program.ranks
    return _sliced(whole, tensor.axis) if tensor.layout == "sliced" else whole


# -- chains in chunks ---------------------------------------------------------------------------------------------


def _run_chunks(program: CommunicationProgram, overlap: Overlap, values: Values) -> None:
    """All chunks of a chain, each stage's after the previous stage's; their outputs are assembled."""
    leaves = [leaf for stage in program.members(overlap) for leaf in stage.leaves()]
    made = [leaf.outputs[0] for leaf in leaves]
    for name in made:
        tensor = program.tensors[name]
        if name in overlap.axes:
            values[name] = [np.full(tensor.held_shape(program.ranks), np.nan) for _ in range(program.ranks)]
    for chunk in range(overlap.chunks):
        parts: dict[str, list[Array]] = {}
        for leaf in leaves:
            for name in leaf.inputs:
                if name not in parts:
                    parts[name] = _chunk(program, overlap, name, chunk, values[name])
            places = _places(program, leaf)
            if places is not None:
                places = _chunk(program, overlap, leaf.outputs[0], chunk, places)
            output = leaf.outputs[0]
            parts[output] = _leaf(leaf, program, parts, places, in_chunks=True)
            if output in overlap.axes:
                _put(program, overlap, output, chunk, parts[output], values[output])
            else:
                values[output] = parts[output]


def _chunk(program: CommunicationProgram, overlap: Overlap, name: str, chunk: int, held: list[Array]) -> list[Array]:
    """One chunk of each rank's part of a tensor; all of it if it is read whole."""
    if name not in overlap.axes:
        return held
    places = chunk_places(program.tensors[name], overlap, chunk, program.ranks)
    return [np.take(array, places, overlap.axes[name]) for array in held]


def _put(program: CommunicationProgram, overlap: Overlap, name: str, chunk: int, made: list[Array],
         into: list[Array]) -> None:
    """Write a chunk to its position."""
    places, axis = chunk_places(program.tensors[name], overlap, chunk, program.ranks), overlap.axes[name]
    for part, whole in zip(made, into, strict=True):
        if axis is None:
            whole.reshape(-1)[places] = part.reshape(-1)
        else:
            np.moveaxis(whole, axis, 0)[places] = np.moveaxis(part, axis, 0)
