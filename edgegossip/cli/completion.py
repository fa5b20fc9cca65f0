"""`edgegossip completion`: the shell completes commands and options."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from edgegossip.cli.options import command
from edgegossip.files import expanded
from edgegossip.options import option
from edgegossip.types import ConfigError, HostError

# Where each shell looks by itself; zsh has no such place.
_PLACES = {
    "bash": ".local/share/bash-completion/completions/edgegossip",
    "fish": ".config/fish/completions/edgegossip.fish",
    "zsh": ".zfunc/_edgegossip",
}
_ZSH = "add to ~/.zshrc, before compinit: fpath+=~/.zfunc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Options of `edgegossip completion`."""

    shell: str | None = option(None, argument=True, metavar="[bash|zsh|fish]")
    show: bool = option(False, "Print the script instead of installing it.")


@command(Completion)
def completion(options: Completion) -> None:
    """Let the shell complete commands and options: write its script where the shell finds it.
    Without a name: for the shell of $SHELL.

    \b
    Examples:
      edgegossip completion
      edgegossip completion fish
      source <(edgegossip completion bash --show)
    """
    from edgegossip.cli.main import cli

    shell = options.shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _PLACES:
        valid = f"valid: {', '.join(_PLACES)}"
        if not shell:
            raise ConfigError(f"$SHELL is not set: name the shell, as in `edgegossip completion bash`; {valid}")
        raise ConfigError(f"no completion for the shell {shell!r}; {valid}")
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "edgegossip", "_EDGEGOSSIP_COMPLETE").source()
    if options.show:
        click.echo(script)
        return
    path = expanded(f"~/{_PLACES[shell]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n", encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {path}: {(error.strerror or str(error)).lower()}; --show prints it") from None
    click.echo(f"wrote {path}; open a new shell{f', and {_ZSH}' if shell == 'zsh' else ''}")
