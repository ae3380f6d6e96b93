"""What all scripts share: options, a record, an exit status, and processes that are ranks.

The last function of a script is decorated with :func:`script`, and runs when the file is run as a program: what is
above it is all that it needs. Its docstring is the file's.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from experiments.lib.provenance import RESULTS, ROOT, Record
from weft.runtime.ranks.launch import Ended, launch_local


class Main(Protocol):
    """Runs a script with ``arguments``, or those of the command line, and gives its exit status."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int: ...


def script(file: str | Callable[[Namespace], str], **flags: Any
           ) -> Callable[[Callable[[Namespace, Record], bool | int | None]], Main]:
    """Of a function of its options and its record, the script. It writes ``--output``, which is ``file`` among what is
    kept; true, or a number above 0, is a bad end.

    ``flags`` are the other options with what holds where they are not given: ``None`` where that is a type. A sequence
    is one of which there may be several, of those of a list, or any.
    """
    def of(run: Callable[[Namespace, Record], bool | int | None]) -> Main:
        def main(arguments: Sequence[str] | None = None) -> int:
            doc = (sys.modules[run.__module__].__doc__ or "").partition("\n\n")[0]
            parser = ArgumentParser(description=doc, formatter_class=ArgumentDefaultsHelpFormatter)
            for name, default in flags.items():
                parser.add_argument(f"--{name.replace('_', '-')}", help=" ", **_kind(default))
            parser.add_argument("--output", type=Path, help=" ")
            options = parser.parse_args(arguments)
            options.output = options.output or RESULTS / (file if isinstance(file, str) else file(options))
            return int(run(options, Record(options.output)) or 0)

        if run.__module__ == "__main__":
            sys.exit(main())
        return main

    return of


def _kind(default: Any) -> dict[str, Any]:
    """What argparse is told of an option."""
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, type):
        return {"type": default}
    if isinstance(default, list | tuple | range):
        return {"nargs": "*", "default": default, "type": type(default[0]) if default else str,
                "choices": default if isinstance(default, list) else None}
    return {"type": type(default), "default": default}


def on_ranks(run: Callable[..., Any], ranks: int, *given: Any, timeout: float = 300.0) -> list[Any]:
    """What ``run(*given)`` gives on each of so many ranks; ``SystemExit`` where one fails."""
    ended = launched(run, ranks, *given, timeout=timeout)
    if any(end.code for end in ended):
        raise SystemExit("\n".join(end.errors for end in ended if end.code))
    return [json.loads(end.output.splitlines()[-1]) for end in ended]


def launched(run: Callable[..., Any], ranks: int, *given: Any, timeout: float) -> list[Ended]:
    """How so many processes end, each of which prints last what ``run(*given)`` gives there."""
    spec = sys.modules[run.__module__].__spec__
    assert spec is not None  # run as a module, not as a file
    code = (f"import json\nfrom {spec.name} import {run.__name__} as run\n"
            f"print(json.dumps(run(*json.loads({json.dumps(given)!r}))))")
    return launch_local(ranks, [sys.executable, *map("-W{}".format, sys.warnoptions), "-c", code], timeout=timeout,
                        environment={"PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT}:{':'.join(sys.path)}"})
