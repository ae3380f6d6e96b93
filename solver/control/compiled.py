"""The compiled kernel: where its binary is.

For the choice of C++ and ctypes over numba or a binding library see :mod:`weft.solver.orders`. The binary is built when
weft is installed, if there is a compiler; it contains no Python, so one serves every version.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache

#: The version that the binary must report: ``kVersion`` in kernel.cpp.
VERSION = 9


@cache
def _library() -> ctypes.CDLL | str:
    """The binary, or why there is none."""
    found = importlib.util.find_spec("weft.solver.orders._kernel")
    if found is None or found.origin is None:
        return "it was not built, as there was no C++ compiler when weft was installed"
    try:
        library = ctypes.CDLL(found.origin)
        version = int(library.weft_version())
    except (OSError, AttributeError) as error:
        return f"it does not load ({error})"
    if version != VERSION:
        return f"it is of version {version}, and this weft needs {VERSION}: install weft again"
    pointer, int_, long, double = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
    written = [pointer] * 4  # a problem, and the destination of its rows
    for name, result, arguments in (
            ("new", pointer, [pointer]), ("delete", None, [pointer]), ("set", ctypes.c_int, [pointer, pointer]),
            ("makespan", long, [pointer]), ("overflow", double, [pointer]), ("best", long, [pointer]),
            ("best_rows", None, [pointer, pointer]), ("starts", None, [pointer, pointer]),
            ("back_to_best", None, [pointer]), ("states_new", pointer, [pointer]), ("states_delete", None, [pointer]),
            ("anneal", long, [pointer, long, double, double, double, ctypes.c_uint64]),
            ("by_width", double, [*written, pointer, int_, pointer, int_]),
            ("by_priority", double, [*written, pointer, pointer, double, double, int_]),
            ("building_block", double, [*written, pointer]),
            ("states_next", long, [pointer, long, pointer]), ("states_sequence", None, [pointer, pointer]),
            ("states_narrow", None, [pointer, long]),
            ("times", long, [int_, int_, *[pointer] * 6, long, *[pointer] * 4])):
        function = getattr(library, f"weft_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def why_not() -> str | None:
    """Why the compiled kernel cannot be used here; None if it can."""
    library = _library()
    return library if isinstance(library, str) else None


def compiled_kernel() -> ctypes.CDLL | None:
    """The binary with its functions declared, if it can be used."""
    library = _library()
    return None if isinstance(library, str) else library
