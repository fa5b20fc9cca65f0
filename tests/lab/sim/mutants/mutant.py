"""A mutant: the real code with a small mistake in it, made at run time.

Each edit names a function and a piece of its source, which must be there exactly once: when the
code has moved, the mutant says so instead of changing something else. The function's code is
compiled anew with the mistake and put in its place, so that everybody who holds the function gets
it; the end of the `with` block puts the right code back."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from edgegossip.lab.sim import Options, naming

NODES, ROUNDS = 4, 8


class Moved(Exception):
    """The code that a mutant changes is not there any more."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function `where` ("package.module:Class.method"), `old` becomes `new`. Of a `new` of
    several lines the later ones are indented as the line in which `old` begins."""

    where: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """`what` says what is wrong. It concerns `algorithms` (NAME[:KEY=VALUE,...] each; none: server
    runs), and is looked for among the schedules of `options`. `equivalent`: why no schedule can
    tell it from the right code; empty if one should."""

    name: str
    what: str
    algorithms: tuple[str, ...]
    edits: tuple[Edit, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    equivalent: str = ""

    def schedules(self) -> Options:
        """Of small fleets and short runs, which are quick, unless `options` says otherwise."""
        named = {k: naming.parse(f"--{k}", v) for k, v in self.options.items() if k in ("codec", "topology")}
        algorithms = tuple(naming.parse("--algorithm", a) for a in self.algorithms) or None
        return Options(**{"algorithms": algorithms, "nodes": NODES, "rounds": ROUNDS, **self.options, **named})

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Raises Moved."""
        with ExitStack() as stack:
            for edit in self.edits:
                function = find(edit.where)
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = mutated(function, edit)
            yield


def find(where: str) -> FunctionType:
    """The plain function behind a method, class method or property."""
    module, _, path = where.partition(":")
    thing: Any = import_module(module)
    for name in path.split("."):
        if name not in vars(thing):
            raise Moved(f"there is no {where}")
        thing = vars(thing)[name]
    thing = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
    if not isinstance(thing, FunctionType):
        raise Moved(f"{where} is not a function")
    return thing


def mutated(function: FunctionType, edit: Edit) -> CodeType:
    """The code of a function with one edit."""
    source = textwrap.dedent(inspect.getsource(function))
    if (count := source.count(edit.old)) != 1:
        raise Moved(f"{edit.old!r} is {count} times in {edit.where}, once is expected")
    line = source[: source.index(edit.old)].rpartition("\n")[2]
    indent = line[: len(line) - len(line.lstrip())]
    changed = source.replace(edit.old, edit.new.replace("\n", "\n" + indent))
    flags = __future__.annotations.compiler_flag
    module = compile(
        "\n" * (function.__code__.co_firstlineno - 1) + changed, function.__code__.co_filename, "exec", flags
    )
    return next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == function.__name__)
