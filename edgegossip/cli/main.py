"""Entry point: finds the command, and turns every error into one sentence and an exit code
(docs/exit-codes.md)."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple, NoReturn

import click

from edgegossip.choices import did_you_mean
from edgegossip.types import COMPUTE_THREAD_PREFIX, EXIT_BUG, EXIT_HOST, EXIT_INTERRUPTED, EdgegossipError
from edgegossip.version import VERSION


class _Entry(NamedTuple):
    """Where a command is, and its line in the list."""

    module: str  # of edgegossip.cli, which has a click command of the same name
    help: str


COMMANDS = {
    "Train": {
        "demo": _Entry("run", "Train both ways on this machine, and say what to try next"),
        "run": _Entry("run", "Train on boards that are processes of this machine"),
        "coordinator": _Entry("coordinator", "Start Flower's server for a run and wait for its boards"),
        "node": _Entry("node", "Be one board of a run"),
        "kill": _Entry("run", "End one board of a run, as a crash would"),
        "recipe": _Entry("recipe", "List what there is to run, and every key of a recipe"),
        "data": _Entry("data", "Fetch data sets; say what a board's own data are"),
        "plan": _Entry("scale", "Predict bytes, seconds and memory before a run"),
    },
    "Look": {
        "runs": _Entry("report", "List the runs of this machine, the newest first"),
        "top": _Entry("report", "Watch a run while it goes on; --web in a browser"),
        "report": _Entry("report", "Print tables, draw plots, write the page of a run"),
        "model": _Entry("model", "Write the model of a run to a file"),
    },
    "Boards": {
        "fleet": _Entry("fleet", "Make identities for boards, and update them"),
        "image": _Entry("image", "Build and configure images of boards' cards"),
        "flash": _Entry("image", "Write an image to a card"),
        "doctor": _Entry("doctor", "Check this machine before it trains"),
        "accept": _Entry("accept", "Measure all of a board, beside what was predicted"),
        "calibrate": _Entry("scale", "Measure this machine, for plan and scale"),
    },
    "Research": {
        "study": _Entry("study", "Train a recipe many times with some keys changed"),
        "scale": _Entry("scale", "See whether adding boards pays, from 2 to 18"),
        "codec": _Entry("codec", "List the codecs; verify that one keeps its claims"),
        "algorithm": _Entry("gossip", "List the gossip algorithms and their parameters"),
        "topology": _Entry("gossip", "Show how fast boards on a topology agree"),
    },
}
_ENTRIES = {name: entry for section in COMMANDS.values() for name, entry in section.items()}
_AGAIN_S = 0.5


class _LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ENTRIES:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(f"edgegossip.cli.{_ENTRIES[cmd_name].module}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"There is no command {word!r}{did_you_mean(word, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, entries in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:11}", entry.help) for name, entry in entries.items()], col_max=12)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Ends with 0 when done, 2 wrong usage, 3 data, 4 this machine, 5 a peer, 6 the run failed, 7 boards were "
    "lost, 8 the result is useless, 130 interrupted (docs/exit-codes.md).",
)
@click.version_option(VERSION, prog_name="edgegossip")
def cli() -> None:
    """Train one model together on 2-18 small boards over slow links: through a coordinator, or peer
    to peer.

    \b
    Start here:   edgegossip demo
                  edgegossip run quickstart-gossip
    """


def main(argv: Sequence[str] | None = None, command: click.Command = cli, name: str = "edgegossip") -> NoReturn:
    """Run one command and exit. A user's mistake is one line on standard error, never a
    traceback."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, _terminate)
    try:
        result = command.main(args=None if argv is None else list(argv), prog_name=name, standalone_mode=False)
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
        elif isinstance(error, OSError) and error.errno in _THE_DISKS:
            code = _fail(f"{error.filename or 'the disk'}: {error.strerror}", EXIT_HOST)
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


_THE_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # troubles that are nobody's mistake


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
