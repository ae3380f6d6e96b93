"""The user's function that makes a training: it is found by its name and called, and its result is checked.

The user's code may fail in any way: modules that do not exist or raise, functions that take other arguments, raise, end
the process, or return something else. Each failure is reported in one sentence.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.runtime.interface.training import Training


class FactoryError(ValueError):
    """The function named by ``--stages`` returns no stages; the message has its name and the cause."""


def load_factory(stages: str) -> Callable[..., Training]:
    """The function ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``, with its result checked.

    Raises :class:`FactoryError` if there is none, as does the function for any fault in it.
    """
    function, name = find_function(stages), f"--stages {stages}"

    @functools.wraps(function)
    def factory(*arguments: Any, **named: Any) -> Training:
        _require_takes(function, name, arguments, named)
        try:
            training = function(*arguments, **named)
        except (Exception, SystemExit) as error:
            raise FactoryError(f"{name}: {_told(error)}") from error
        _require_training(training, name, "a rank's stages" if arguments else "all stages")
        return training  # type: ignore[no-any-return]

    return factory


def takes_session(function: Callable[..., Training]) -> bool:
    """Whether ``function`` has an argument named ``session``."""
    try:
        return "session" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def find_function(stages: str, option: str = "--stages") -> Callable[..., Any]:
    """The function ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``. Raises :class:`FactoryError`, in which ``option`` is
    the source of the name."""
    where, colon, function_name = stages.rpartition(":")
    if not colon or not where or not function_name:
        raise FactoryError(f"{option} is {stages!r:.200}, it must be FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        module = _file(where, f"{option} {stages}") if where.endswith(".py") else _module(where)
        function = getattr(module, function_name)
    except FactoryError:
        raise
    except (ImportError, AttributeError, SyntaxError) as error:
        raise FactoryError(f"{option} {stages}: {(str(error) or type(error).__name__).splitlines()[0]}") from None
    except (Exception, SystemExit) as error:
        raise FactoryError(f"{option} {stages}: {where} cannot be imported: {_told(error)}") from error
    if not callable(function):
        raise FactoryError(f"{option} {stages}: {function_name} is {type(function).__name__}, it must be a function")
    return function  # type: ignore[no-any-return]


def _file(where: str, name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"stages of {Path(where).stem}", where)  # not a possible module name
    if found is None or found.loader is None or not Path(where).is_file():
        raise FactoryError(f"{name}: there is no file {where}")
    folder = str(Path(where).absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # the file may import its neighbours, as a script may
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


def _module(where: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # the user's own module, from the folder where the command runs
    return importlib.import_module(where)


def _require_takes(function: Callable[..., Any], name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        wanted = "a plan and a rank, as function(plan, rank)" if arguments else "no arguments"
        raise FactoryError(f"{name} takes {signature}, it must take {wanted}") from None


def _told(error: BaseException) -> str:
    """Type, message and place of an error in the user's code."""
    message = (str(error) or "no message").splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {message:.300}{place}"


def _require_training(training: object, name: str, stages_of: str) -> None:
    """Refuse a result that is not a training, or whose fields have other types."""
    from torch import nn

    from weft.runtime.interface.training import Training

    if not isinstance(training, Training):
        raise FactoryError(f"{name} gave {type(training).__name__}, it must give a "
                           f"weft.runtime.Training with {stages_of}")
    stages = training.stages
    if not isinstance(stages, Mapping) or not all(type(stage) is int for stage in stages):
        raise FactoryError(f"{name}: stages is {stages!r:.100}, it must hold modules by number of their stage")
    if isinstance(stages, dict):  # other mappings may make a module at each lookup
        for stage, module in stages.items():
            if not isinstance(module, nn.Module):
                raise FactoryError(f"{name}: stages[{stage}] is {type(module).__name__}, it must be a torch.nn.Module")
    boundaries = training.boundaries
    if isinstance(boundaries, str) or not isinstance(boundaries, Mapping | Sequence):
        raise FactoryError(f"{name}: boundaries is {type(boundaries).__name__}, it must be a list of "
                           "weft.runtime.Boundary, or with ports hold them by name")
    for boundary in boundaries.values() if isinstance(boundaries, Mapping) else boundaries:
        _require_boundary(boundary, name)
    if type(training.steps) is not int or training.steps < 0:
        raise FactoryError(f"{name}: steps is {training.steps!r:.100}, it must be a number of batches")
    for field in ("inputs", "targets", "loss", "after_backward", "collect"):
        value = getattr(training, field)
        if not callable(value) and (value is not None or field == "inputs"):
            raise FactoryError(f"{name}: {field} is {type(value).__name__}, it must be a function")
    if not isinstance(training.layers, Mapping) or any(
            isinstance(names, str) or not isinstance(names, Sequence) for names in training.layers.values()):
        raise FactoryError(f"{name}: layers is {training.layers!r:.100}, it must hold lists of names by stage")
    ties = training.ties
    if not isinstance(ties, Sequence) or not all(isinstance(tie, Mapping) and all(
            type(stage) is int and isinstance(parameter, str) for stage, parameter in tie.items()) for tie in ties):
        raise FactoryError(f"{name}: ties is {ties!r:.100}, it must be a list of parameters' names by stage")


def _require_boundary(boundary: object, name: str) -> None:
    import torch

    good = (isinstance(boundary, tuple) and len(boundary) == 2 and isinstance(boundary[0], tuple)
            and all(size is None or (type(size) is int and size >= 0) for size in boundary[0])
            and isinstance(boundary[1], torch.dtype))
    if not good:
        raise FactoryError(f"{name}: boundaries has {boundary!r:.100}, it must be a weft.runtime.Boundary "
                           "of a shape (a tuple of whole numbers, None where a length is not known) and a torch.dtype")
