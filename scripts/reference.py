"""Write docs/reference.md: every command, recipe key, codec, algorithm, topology and strategy with
what may be set of it, from where it is declared (edgegossip/options.py).

    python scripts/reference.py > docs/reference.md
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import click

from edgegossip import gossip, recipe
from edgegossip.cli.main import cli
from edgegossip.codecs import REGISTRY
from edgegossip.flower import combine
from edgegossip.gossip import topologies
from edgegossip.gossip.rounds import Synchronous
from edgegossip.options import REQUIRED, Option, as_toml, options_of

HEAD = """# Reference

What may be set, and to what. `python scripts/reference.py > docs/reference.md` writes this page
from the declarations in the code; do not edit it.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *commands(), *recipe_keys(), *codecs(), *algorithms(), *of_topologies(), *strategies()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def commands() -> Iterator[str]:
    """Yield a section for each command."""
    yield "## Commands\n"
    for path, command in _walk(cli, "edgegossip"):
        context = click.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)[1:]])
        yield f"### `{usage}`\n\n{_first(command.help or '')}\n"
        kind = get_type_hints(inspect.unwrap(command.callback))["options"]  # type: ignore[type-var]
        shown = []
        for o, param in zip(options_of(kind), command.params, strict=True):
            if isinstance(param, click.Option) and not param.hidden:
                flags = ", ".join([*getattr(param, "shown", param.opts), *param.secondary_opts])
                shown.append(replace(o, name=f"{flags} {param.metavar or ''}".strip()))
        yield table(shown)


def recipe_keys() -> Iterator[str]:
    """Yield a section for each section of a recipe."""
    yield "## Recipes\n\nSet one with `--set section.key=value`, or in a TOML file.\n"
    for name, kind in recipe.sections().items():
        yield f"### [{name}]\n\n{_first(inspect.getdoc(kind) or '')}\n\n{table(options_of(kind), name + '.')}"


def codecs() -> Iterator[str]:
    """Yield a section for each codec."""
    yield "## Codecs\n\nFor `codec.name` and `codec.params`; docs/codecs.md says when to take which.\n"
    for family in REGISTRY.families.values():
        yield f"### {family.name}\n\n{family.help}\n\n" + table(options_of(family.params))


def algorithms() -> Iterator[str]:
    """Yield a section for each algorithm."""
    yield "## Algorithms\n\nFor `gossip.algorithm` and `gossip.params`; docs/gossip.md describes them.\n"
    rounds = [o for o in options_of(Synchronous) if o.name != "scheme"]
    yield "All but ad-psgd go by rounds, and have these as well:\n\n" + table(rounds)
    for name in gossip.names():
        make = gossip.maker(name)
        own = [o for o in options_of(make) if o.name != "keeps"]
        about = "" if inspect.isclass(make) else _first(inspect.getdoc(make) or "")
        yield f"### {name}\n\n{about}\n\n" + table(own)


def of_topologies() -> Iterator[str]:
    """Yield a section for each topology."""
    yield "## Topologies\n\nFor `gossip.topology` and `gossip.topology_params`.\n"
    for name in topologies.names():
        build = topologies.builder(name)
        own = [o for o in options_of(build) if o.name != "n"]
        yield f"### {name}\n\n{_first(inspect.getdoc(build) or '')}\n\n" + table(own)


def strategies() -> Iterator[str]:
    """Yield a section for each of Flower's strategies; what the coordinator does itself is left
    out."""
    yield "## Strategies\n\nFor `server.strategy` and `server.strategy_params`: Flower's, by the names there.\n"
    for name, make in combine.MAKERS.items():
        own = [o for o in options_of(make) if o.name not in combine.INSTEAD]
        yield f"### {name}\n\n" + table(own)


def table(options: Iterable[Option], prefix: str = "") -> str:
    """Return the options as a table; nothing where there are none."""
    # A bar in code would need an escape on GitHub that other readers of Markdown show.
    rows = [
        (f"`{prefix}{o.name.replace('|', ' or ')}`", _kind(o), _default(o), f"{o.help}{o.limits}".strip())
        for o in options
    ]
    if not rows:
        return ""
    lines = [("name", "type", "default", ""), ("---",) * 4, *(tuple(map(_cell, row)) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command, info_name=path)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield from _walk(inner, f"{path} {name}")


def _first(text: str) -> str:
    """Its first paragraph, wrapped anew."""
    return textwrap.fill(" ".join(text.partition("\n\n")[0].split()), 100, break_on_hyphens=False)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default(o: Option) -> str:
    if o.default is REQUIRED:
        return "required"
    if o.default is None or o.default is False or (o.default != 0 and not o.default):
        return ""
    value = str(o.default) if isinstance(o.default, Path) else o.default
    return f"`{as_toml(list(value) if isinstance(value, tuple) else value)}`"


def _kind(o: Option) -> str:
    if o.type is tuple:
        return "list of numbers"
    if get_origin(o.type) in (list, tuple):
        return f"{_WORDS[get_args(o.type)[0]]}, several"
    return _WORDS.get(o.type, "table")


_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}

if __name__ == "__main__":
    print(page(), end="")
