"""A command: functions whose signatures are its options, and the shell output of their results.

Its parser has its help, one line for bad usage, and a suggestion for a misspelled option.
"""

from __future__ import annotations

import argparse
import builtins
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from dataclasses import fields as fields_of
from functools import cached_property
from typing import Annotated, Any, ForwardRef, NoReturn, TypeAlias, get_args

from weft.app.lib.arguments import LIMITS, Option, plain
from weft.app.lib.options import MEANING, OptionsTaken, SearchOptions

#: Exit statuses; the epilog of every ``--help`` explains them.
GOOD, NO, BAD, FAULT, INTERRUPTED = 0, 1, 2, 3, 130


def into(help: str, times: str = "") -> Option:
    """The output of a command."""
    return Option(help, "FILE", flags="-o --output", times=times)


#: Options of the search commands in addition to those of their functions.
Quiet: TypeAlias = Annotated[bool, Option("do not show progress", group=LIMITS)]
Json: TypeAlias = Annotated[bool, Option("print the result as JSON", flags="--json", group=LIMITS)]
NoCache: TypeAlias = Annotated[bool, Option("neither use nor keep what is solved", apart="cache")]
Outputs: TypeAlias = Annotated[list[str] | None, into(
    "where to (.html, .svg, .png, .json); may be given several times", "append")]


@dataclass(frozen=True)
class _Declared:
    """An argument of a function, from its signature."""

    name: str
    option: Option
    default: Any
    is_bool: bool
    is_positional: bool = False
    is_variadic: bool = False
    is_of_search: bool = False

    @property
    def flags(self) -> list[str]:
        """Its option names in a shell, unless it is positional."""
        return (self.option.flags or f"--{self.name.replace('_', '-')}").split()

    def add(self, parser: argparse._ActionsContainer) -> None:
        """Add it to ``parser``."""
        option, required = self.option, self.default is MISSING
        settings = dict[str, Any](help=option.help, default=None if required else self.default)
        if self.is_bool:
            settings["action"] = "store_false" if self.default else "store_true"
        else:
            told = self.default in (MISSING, None, ()) or "(default: " in option.help or "default)" in option.help
            settings |= {"help": option.help + ("" if told else f" (default: {_shown(self.default)})"),
                         "metavar": option.metavar, "choices": option.choices, "type": _typed(option.parse)}
            if option.times == "append":
                settings["action"] = "append"
            elif option.times:
                settings["nargs"] = option.times
        if self.is_positional:
            settings |= {"nargs": "+"} if self.is_variadic else {} if required else {"nargs": "?"}
            parser.add_argument(self.name, **settings)
        else:
            parser.add_argument(*self.flags, dest=self.name, required=required, **settings)


def declared(function: Callable[..., Any]) -> Iterator[_Declared]:
    """The arguments of ``function`` available in a shell: those with an :class:`Option`."""
    source = getattr(function, "asked", function)
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = _evaluated(source.__annotations__.get(name), vars(sys.modules[source.__module__]))
        default = MISSING if parameter.default is parameter.empty else parameter.default
        if parameter.kind is parameter.VAR_KEYWORD:
            for keywords in get_args(annotation):  # of Unpack[...]
                yield from _declared_keywords(keywords)
        for said in getattr(annotation, "__metadata__", ()):
            if isinstance(said, OptionsTaken):
                yield from _declared_search(said)
            elif isinstance(said, Option):
                is_positional = parameter.kind is not parameter.KEYWORD_ONLY and not said.flags
                yield _Declared(name, said, default, get_args(annotation)[0] is bool, is_positional,
                                parameter.kind is parameter.VAR_POSITIONAL)


def _declared_search(search: OptionsTaken) -> Iterator[_Declared]:
    defaults = {field.name: field.default for field in fields_of(SearchOptions)}
    for name in search.fields:
        annotation = _evaluated(SearchOptions.__annotations__[name], vars(sys.modules[SearchOptions.__module__]))
        option, default = annotation.__metadata__[0], search.time_limit if name == "time_limit" else defaults[name]
        if name == "objective":
            option = replace(option, choices=search.objectives, help=option.help + "; ".join(
                f"{known}, {MEANING[known]}" for known in search.objectives))
        yield _Declared(name, option, default, get_args(annotation)[0] is bool, is_of_search=True)


def _declared_keywords(keywords: type) -> Iterator[_Declared]:
    for name, reference in keywords.__annotations__.items():
        module = sys.modules[getattr(reference, "__forward_module__", None) or keywords.__module__]
        annotation = _evaluated(reference, vars(module))
        for option in getattr(annotation, "__metadata__", ()):
            is_bool = get_args(annotation)[0] is bool
            yield _Declared(name, option, bool(option.default) if is_bool else option.default, is_bool)


class _Names(dict[str, Any]):
    """The names of a module; ``Any`` for those defined only for type checkers."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    if not isinstance(text, str):
        return text
    return eval(text, {}, _Names(names))


def _shown(default: Any) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def _typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """``parse``, whose errors complete sentences begun by argparse."""
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


@dataclass(frozen=True)
class Call:
    """A called command: its functions, and the values given, by the names of their arguments and its own."""

    functions: tuple[Callable[..., Any], ...]
    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __call__(self, function: Callable[..., Any] | None = None, /, **further: Any) -> Any:
        """The result of ``function`` (default: the first one) for the given values and ``further`` arguments."""
        function = self.functions[0] if function is None else function
        parameters = inspect.signature(function).parameters
        given, search = dict[str, Any](), dict[str, Any]()
        for one in declared(function):
            if one.name in parameters or one.is_of_search or self.values[one.name] is not None:
                (search if one.is_of_search else given)[one.name] = self.values[one.name]
        if search:
            given["options"] = SearchOptions(**search)
        given |= further
        kinds = [parameter.kind for parameter in parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL not in kinds:
            return function(**given)
        *first, variadic = list(parameters)[:kinds.index(inspect.Parameter.VAR_POSITIONAL) + 1]
        return function(*[given.pop(name) for name in first], *given.pop(variadic), **given)


@dataclass(frozen=True)
class Command:
    """One command: it accepts the arguments of ``functions`` and of ``shows``, which receives the call and returns the
    exit status. A user error is a ``ValueError``, ``OSError`` or ``ImportError`` with one sentence, which the command
    line prints. ``stops``: whether SIGTERM and SIGHUP are treated as Ctrl-C, which Python handles only between its own
    steps; commands that may wait long in native code leave them unchanged.

    Its help is the module's docstring: a summary line, paragraphs, and examples after ``example:``.
    """

    functions: tuple[Callable[..., Any], ...]
    shows: Callable[..., int]
    stops: bool = True

    @property
    def name(self) -> str:
        """The module's name, without the ``_`` appended to a Python keyword."""
        return self.shows.__module__.rpartition(".")[2].rstrip("_")

    @cached_property
    def _help(self) -> tuple[list[str], str]:
        text, _, example = (self.shows.__globals__["__doc__"] or "").partition("\nexample:\n")
        return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())], textwrap.dedent(example).strip()

    @property
    def summary(self) -> str:
        """Its summary line."""
        return self._help[0][0]

    @property
    def paragraphs(self) -> list[str]:
        """The remaining paragraphs of its help."""
        return self._help[0][1:]

    @property
    def example(self) -> str:
        """Shell lines."""
        return self._help[1]

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to ``parser``."""
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        names = [{one.name for one in declared(function)} for function in self.functions]
        by_name: dict[str, _Declared] = {}
        for one in (one for function in (*self.functions, self.shows) for one in declared(function)):
            if one.default is MISSING and any(one.name in some for some in names) and not all(
                    one.name in some for some in names):
                one = replace(one, default=None)  # not an argument of every function
            by_name.setdefault(one.name, one)
        searches = any(one.is_of_search for one in by_name.values())
        for one in by_name.values():
            group, apart = one.option.group if searches else "", one.option.apart
            if group not in groups:
                groups[group] = parser.add_argument_group(group)
            if apart and apart not in groups:
                groups[apart] = groups[group].add_mutually_exclusive_group()
            one.add(groups[apart or group])

    def run(self, options: argparse.Namespace) -> int:
        """Run the command; returns the exit status."""
        values = vars(options)
        own = {one.name: values[one.name] for one in declared(self.shows)}
        return self.shows(Call(self.functions, values), **own)


def words_of(function: Callable[..., Any], values: Mapping[str, Any]) -> list[str]:
    """The shell words that pass these values to ``function``; none for a default or ``None``."""
    words: list[str] = []
    for one in declared(function):
        value = values.get(one.name)
        if value is None or value == one.default:
            continue
        words += [] if one.is_positional else one.flags[-1:]
        words += [] if one.is_bool else [str(value)]
    return words


def command(*functions: Callable[..., Any], stops: bool = True) -> Callable[[Callable[..., int]], Command]:
    """A command of a module, whose ``functions`` are the public ones."""
    for function in functions:
        function.__signature__ = plain(inspect.signature(function))  # type: ignore[attr-defined]
    return lambda shows: Command(functions, shows, stops)


_EXIT_STATUS = """\
exit status:
  0    good; also after Ctrl-C, SIGTERM or SIGHUP, where there was an answer to keep
  1    the answer is no: the schedule is invalid, or no schedule fits the memory
  2    bad usage, or a file that cannot be read or written
  3    a fault in weft: the sentence names a file with the details
  130  interrupted before there was any answer (sweep: before there was all of it)
"""

#: An error is one sentence; names in it may be as long as a file makes them.
_LONGEST = 2000

#: Columns of a help text, if the terminal is wide enough.
_WIDEST = 100


def short(message: str) -> str:
    """``message`` cut to a readable length."""
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST // 2]} ... {message[-_LONGEST // 2:]}"


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, and suggests a similar option. Options cannot be abbreviated: a prefix may be another
    tool's name for something else (``export --to``)."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD, f"{self.prog}: {short(message)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known = [option for action in self._actions for option in action.option_strings]
        for text in args or ():  # before argparse, which would first report a missing argument
            if text == "--":
                break
            name = text.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in known:
                from weft.solver.spelling import near

                self.error(f"there is no option {name}{near(name, known)}")
        return super().parse_known_args(args, namespace)


def describe(parser: argparse.ArgumentParser, found: Command) -> None:
    """Add the arguments of ``found`` to ``parser``, and its help."""
    width = min(_WIDEST, max(40, shutil.get_terminal_size((_WIDEST, 24)).columns))
    text = (f"weft {found.name} - {found.summary}", *found.paragraphs)
    parser.description = "\n\n".join(textwrap.fill(paragraph, width) for paragraph in text)
    parser.epilog = f"example:\n{textwrap.indent(found.example, '  ')}\n\n{_EXIT_STATUS}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    found.arguments(parser)
