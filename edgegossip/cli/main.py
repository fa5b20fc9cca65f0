"""Entry point: finds the command, and turns every error into one sentence and an exit code
(docs/exit-codes.md)."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from edgegossip import __version__
from edgegossip.types import COMPUTE_THREAD_PREFIX, EXIT_BUG, EXIT_INTERRUPTED, EdgegossipError

# Command -> module that holds a click command of the same name.
COMMANDS = {
    "run": "edgegossip.cli.run",
    "coordinator": "edgegossip.cli.coordinator",
    "node": "edgegossip.cli.node",
    "fleet": "edgegossip.cli.fleet",
    "image": "edgegossip.cli.image",
    "flash": "edgegossip.cli.image",
    "report": "edgegossip.cli.report",
    "model": "edgegossip.cli.model",
    "export": "edgegossip.cli.model",
    "top": "edgegossip.cli.report",
    "recipe": "edgegossip.cli.recipe",
    "data": "edgegossip.cli.data",
    "bench": "edgegossip.cli.bench",
    "study": "edgegossip.cli.study",
    "scale": "edgegossip.cli.scale",
    "codec": "edgegossip.cli.codec",
    "sim": "edgegossip.cli.sim",
    "topology": "edgegossip.cli.topology",
    "plan": "edgegossip.cli.scale",
    "calibrate": "edgegossip.cli.scale",
    "doctor": "edgegossip.cli.doctor",
}
_AGAIN_S = 0.5


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command if isinstance(command, click.Command) else None


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="edgegossip")
def cli() -> None:
    """Train one model together on 2-18 small boards over slow links: through a coordinator, or peer
    to peer.

    \b
    Start here:   edgegossip run quickstart-gossip
                  edgegossip run quickstart-server
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit. A user's mistake is one line on standard error, never a
    traceback."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, _terminate)
    try:
        result = cli.main(args=None if argv is None else list(argv), prog_name="edgegossip", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        code = _fail("interrupted", EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KeyboardInterrupt:
        code = _fail("interrupted", EXIT_INTERRUPTED)
    except EdgegossipError as error:
        code = _fail(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BUG
    except Exception as error:
        if os.environ.get("EDGEGOSSIP_DEBUG"):
            traceback.print_exc()
        hint = "set EDGEGOSSIP_DEBUG=1 for the traceback, and please report it"
        if _comes_of_interrupt(error):
            code = _fail("interrupted", EXIT_INTERRUPTED)
        else:
            code = _fail(f"unexpected {type(error).__name__}: {error} ({hint})", EXIT_BUG)
    signal.setitimer(signal.ITIMER_REAL, 0)  # what comes again has come
    # A board that failed may still compute an update. The interpreter would wait for it; and were
    # its thread a daemon, torch would abort the process.
    if any(thread.name.startswith(COMPUTE_THREAD_PREFIX) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _fail(text: str, code: int) -> int:
    click.echo(f"edgegossip: {text}", err=True)
    return code


def _terminate(signum: int, frame: FrameType | None) -> None:
    """SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does, so that it takes its
    boards down with it.

    Python drops what is raised in a finaliser, in the callback of a weak reference, and in C code
    that takes any error for a no. So the interrupt comes again, unless it is under way."""
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    if signum != signal.SIGALRM or not _comes_of_interrupt(sys.exc_info()[1]):
        raise KeyboardInterrupt


def _comes_of_interrupt(error: BaseException | None) -> bool:
    """Return whether this is an interrupt, or was raised while one was under way: one in the middle
    of `threading`'s own code leaves a lock there that is released twice."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
