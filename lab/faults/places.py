"""Finds the places of a file at which a mistake can be planted.

What people forget is state: a reset, a value that is handed on, the second time. So a statement
that sets or calls something can be missing, a condition can be always or never true, a term, a
keyword, a key or a bound can be left out, and a border can be off by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_BORDERS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_QUIET = ("echo", "log", "say", "warn")  # what only tells people something
_Node: TypeAlias = ast.expr | ast.stmt


@dataclass(frozen=True, slots=True)
class Fault:
    """Says what to put in the place of a piece of text, which begins and ends at (line, byte)."""

    kind: str
    where: str  # class and function
    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    def planted(self, source: str) -> str:
        """Return the file with this mistake."""
        lines = source.encode().split(b"\n")
        (first, begin), (last, end) = self.start, self.end
        head = [*lines[: first - 1], lines[first - 1][:begin] + self.text.encode() + lines[last - 1][end:]]
        return b"\n".join([*head, *lines[last:]]).decode()

    def replaced(self, source: str) -> str:
        """Return what stands there now."""
        lines = source.encode().split(b"\n")[self.start[0] - 1 : self.end[0]]
        lines[-1] = lines[-1][: self.end[1]]
        lines[0] = lines[0][self.start[1] :]
        return b"\n".join(lines).decode()

    def changes(self, source: str) -> bool:
        """Return whether the file then says something else, and is Python still."""
        try:
            return ast.dump(ast.parse(self.planted(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


def faults_of(source: str) -> list[Fault]:
    """Return all that can be planted in functions of a file, in its order."""
    return list(_below(ast.parse(source), "", False))


def _below(node: ast.AST, where: str, inside: bool) -> Iterator[Fault]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        where = f"{where}.{node.name}".lstrip(".")
        inside = inside or isinstance(node, ast.FunctionDef)
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
        return  # words for people
    if inside:
        yield from _at(node, where)
    for child in ast.iter_child_nodes(node):
        yield from _below(child, where, inside)


def _at(node: ast.AST, where: str) -> Iterator[Fault]:
    def instead(of: _Node, kind: str, text: str) -> Fault:
        return Fault(kind, where, (of.lineno, of.col_offset), (of.end_lineno or 0, of.end_col_offset or 0), text)

    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            if not where.endswith("__init__"):
                yield instead(node, "missing", "pass")
        case ast.Expr(value=ast.Call(func=called)) if not ast.unparse(called).rpartition(".")[2].startswith(_QUIET):
            yield instead(node, "missing", "pass")
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from (instead(test, kind, word) for kind, word in (("never", "False"), ("always", "True")))
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.And) else " or "
            for left_out in values:
                yield instead(node, "no term", f"({word.join(_texts(v for v in values if v is not left_out))})")
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _BORDERS:
            yield instead(node, "border", f"{ast.unparse(left)} {_BORDERS[type(sign)]} {ast.unparse(right)}")
        case ast.Call(func=ast.Name(id="max" | "min"), args=[_, _], keywords=[]):
            yield from (instead(node, "no bound", f"({text})") for text in _texts(node.args))
        case ast.Call(func=function, args=args, keywords=keywords):
            for one in keywords:
                rest = [keyword for keyword in keywords if keyword is not one]
                yield instead(node, f"no {one.arg or '**'}", ast.unparse(ast.Call(function, args, rest)))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield instead(node, "off by one", f"({ast.unparse(left)})")
        case ast.Dict(keys=keys, values=values) if len(keys) > 1:
            for k, key in enumerate(keys):
                rest_of = ast.Dict([*keys[:k], *keys[k + 1 :]], [*values[:k], *values[k + 1 :]])
                yield instead(node, f"no {ast.unparse(key) if key else '**'}", ast.unparse(rest_of))


def _texts(values: Iterator[ast.expr] | list[ast.expr]) -> list[str]:
    return [f"({ast.unparse(value)})" for value in values]
