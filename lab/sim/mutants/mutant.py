"""A mutant: the real code with a small mistake in it, made at run time.

Each edit names a function, a place in its syntax tree and what is to be there. The place is named
by what the code does there, not by its text: it is found whatever locals are called, and code
around it may move. When it is gone, or there are several, the mutant says so instead of changing
something else. What is to be there says by `$` what was, and where that cannot be said it names
locals, which then may not be renamed: a test counts these mutants.
The function is compiled anew with the mistake and its code put in its place, so that everybody who
holds the function gets it; the end of the `with` block puts the right code back."""

from __future__ import annotations
import __future__

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from lab.sim import Options, naming

NODES, ROUNDS = 4, 8
WHOLE, PART = "whole__", "part__"  # names that stand for what was there


class Moved(Exception):
    """The code that a mutant changes is not there any more."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function `where` ("package.module:Class.method"), `at` becomes `new`.

    `at` is a kind of node, of Python's ast ("Compare", "Call", ...; "test": a condition; "stmt": a
    statement), then names that it mentions, of attributes, functions and globals, and perhaps a
    number: "test _refused", "stmt _keep", "Call replace 1" is the second one of such. Without a
    number it must be the only one, but for those that it is within.

    `new` is an expression, or statements for "stmt". In it `$` is what was there, `$0`, `$1`, ...
    its parts in their order: "$0 <= $1"."""

    where: str
    at: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """`what` says what is wrong. It concerns `algorithms` (NAME[:KEY=VALUE,...] each; none: server
    runs), and is looked for among the schedules of `options`. `unseen`: why no schedule tells it
    from the right code, or none has yet; `seen_by`: the tests that do, each as pytest names it."""

    name: str
    what: str
    algorithms: tuple[str, ...]
    edits: tuple[Edit, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    unseen: str = ""
    seen_by: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether a schedule should tell it from the right code."""
        return not self.unseen

    def schedules(self) -> Options:
        """Of small fleets and short runs, which are quick, unless `options` says otherwise."""
        named = {k: naming.parse(f"--{k}", v) for k, v in self.options.items() if k in ("codec", "topology")}
        algorithms = tuple(naming.parse("--algorithm", a) for a in self.algorithms) or None
        return Options(**{"algorithms": algorithms, "nodes": NODES, "rounds": ROUNDS, **self.options, **named})

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Raises Moved."""
        edits: dict[str, list[Edit]] = {}
        for edit in self.edits:
            edits.setdefault(edit.where, []).append(edit)
        with ExitStack() as stack:
            for where, several in edits.items():
                function = find(where)
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = mutated(function, several)
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


def mutated(function: FunctionType, edits: list[Edit]) -> CodeType:
    """The code of a function with these edits, all of places in the right one."""
    tree = tree_of(function)
    body = tree.body[0]
    for node, edit in [(place(body, edit), edit) for edit in edits]:
        _Put(node, _made(edit.new, node, edit.at.startswith("stmt"))).visit(tree)
    ast.increment_lineno(ast.fix_missing_locations(tree), function.__code__.co_firstlineno - 1)
    flags = __future__.annotations.compiler_flag
    module = compile(tree, function.__code__.co_filename, "exec", flags)
    return next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == function.__name__)


def tree_of(function: FunctionType) -> ast.Module:
    """Return the syntax tree of a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def place(body: ast.stmt, edit: Edit) -> ast.AST:
    """The node that an edit means. Raises Moved."""
    kind, *names = edit.at.split()
    number = int(names.pop()) if names and names[-1].isdigit() else None
    own = locals_of(body)
    found = [node for node in of_kind(body, kind) if set(names) <= mentioned(node, own)]
    if number is None:  # of those that are within each other the innermost
        found = [node for node in found if not any(other is not node and other in ast.walk(node) for other in found)]
    if len(found) <= (number or 0) or (number is None and len(found) > 1):
        raise Moved(f"{edit.at!r} is {len(found)} times in {edit.where}")
    return found[number or 0]


def of_kind(body: ast.stmt, kind: str) -> list[ast.AST]:
    """All nodes of a kind, in the order of the text."""
    if kind == "test":
        found: list[ast.AST] = []
        for node in _walk(body):
            found += [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
            found += node.ifs if isinstance(node, ast.comprehension) else []
        return found
    wanted = getattr(ast, kind)
    return [node for node in _walk(body) if isinstance(node, wanted) and node is not body]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def locals_of(body: ast.AST) -> set[str]:
    """The names of a function's locals."""
    names = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return names | {n.arg for n in ast.walk(body) if isinstance(n, ast.arg)}


def mentioned(node: ast.AST, own: set[str]) -> set[str]:
    """The names in a node that are no locals of the function: of attributes, keywords, functions,
    globals."""
    found = set[str]()
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute):
            found.add(n.attr)
        elif isinstance(n, ast.keyword) and n.arg:
            found.add(n.arg)
        elif isinstance(n, ast.Name) and n.id not in own:
            found.add(n.id)
    return found


def parts(node: ast.AST) -> list[ast.expr]:
    """The expressions that a node is made of."""
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)] + [
        child.value for child in ast.iter_child_nodes(node) if isinstance(child, ast.keyword)
    ]


def _made(new: str, node: ast.AST, statements: bool) -> list[Any]:
    text = re.sub(r"\$(\d+)", rf"{PART}\1", new)
    tree = ast.parse(text.replace("$", WHOLE))
    filled = _Fill(node).visit(tree)
    if statements:
        return list(filled.body)
    return [filled.body[0].value]


class _Fill(ast.NodeTransformer):
    """Puts what was there in the place of what stands for it."""

    def __init__(self, node: ast.AST) -> None:
        self._node, self._parts = node, parts(node)

    def visit_Name(self, name: ast.Name) -> Any:
        if name.id == WHOLE:
            return deepcopy(self._node)
        return deepcopy(self._parts[int(name.id[len(PART) :])]) if name.id.startswith(PART) else name

    def visit_Expr(self, statement: ast.Expr) -> Any:
        whole = isinstance(statement.value, ast.Name) and statement.value.id == WHOLE
        return deepcopy(self._node) if whole and isinstance(self._node, ast.stmt) else self.generic_visit(statement)


class _Put(ast.NodeTransformer):
    """Puts nodes in the place of one."""

    def __init__(self, node: ast.AST, new: list[Any]) -> None:
        self._node, self._new = node, new

    def visit(self, node: ast.AST) -> Any:
        if node is self._node:
            return self._new if isinstance(node, ast.stmt) else self._new[0]
        return self.generic_visit(node)
