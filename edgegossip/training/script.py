"""A user's own training script in a run: `ScriptWorkload` runs it, `join` brings it in (`run.py`).

The script runs on a thread of its own; the board's program stays what it is for recipes, with a
`ScriptWorkload` as its workload. What the program wants of it (train a round, evaluate a model,
keep the state) is a request, and the script carries requests out whenever it is in `Run.start` or
`Run.exchange`. So the user's model, optimiser and data are touched by the user's thread alone.

    board's program                       the script's thread
    local_update(x, round)   -- train -->   x is in the model; `exchange` or `start` returns
                                            ... the user's loop ...
    LocalUpdate              <-----------   run.exchange(loss=...)
    evaluate(x), snapshot()  -- call -->    carried out inside `exchange`
    over(x)                  -- end -->     x is in the model; `run.rounds()` ends
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import runpy
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from edgegossip.agreement import Agreement
from edgegossip.layout import Layout
from edgegossip.recipe import Recipe
from edgegossip.training.base import Workload, plugin_facts
from edgegossip.training.run import Context, Run, join, running
from edgegossip.training.steps import Remark
from edgegossip.training.vector import named_arrays, whole_state
from edgegossip.types import LocalUpdate, Metrics, NodeId, Round, UsageError, Vec

__all__ = ["Run", "ScriptWorkload", "join"]

T = TypeVar("T")

# A round so many times as long as the longest before it is told, not sooner than after so long.
_SLOW_FACTOR, _SLOW_S = 10.0, 30.0
_MOST_NAMED = 4  # batch norms in a sentence
_LEAVE_S = 5.0  # for a script that is abandoned to end
_POLL_S = 0.2  # between two looks at whether the script is alive


class ScriptWorkload(Workload):
    """Runs a script as a board's workload, on a thread of its own."""

    def __init__(
        self,
        recipe: Recipe,
        index: int,
        name: NodeId,
        event: Callable[..., None] = lambda name, text, **fields: None,
        *,
        ends_at: str = "",
    ) -> None:
        """Run the script up to its `join`; `event` gets a name, a sentence and more figures of what
        a user should know, such as that it takes unusually long. With `ends_at`, "join" or "first
        round", the script ends there; what joined is its layout and agreement. Raises UsageError
        when it fails before that."""
        self._recipe, self._event, self._longest_s = recipe, event, 0.0
        self._context = Context(recipe, name, index, ends_at)
        self._failure: UsageError | None = None
        self._ended = False  # and what is left of the script is ours
        self._thread = threading.Thread(target=self._run_script, name="script", daemon=True)
        self._thread.start()
        self._run = self._wait(self._context.joined, "has not called edgegossip.join yet")
        self._vector = self._run._vector
        if (model_only := self._context.wants_model_only) or ends_at:
            self._thread.join()
            self._ended = True
            if not model_only and (self._failure or not self._run._started):
                raise self._failure or self._ended_early()
            self._say_remarks()
        asked, rounds = self._run._asked_rounds, recipe.run.rounds
        if asked not in (None, rounds) and self._context.index == 0:
            event(
                "notice",
                f"{self._context.script} asked join for {asked} rounds, and the run has run.rounds = {rounds}: "
                f"say --set run.rounds={asked}, or give it {{rounds}} as an argument",
            )
        if self._context.index == 0 and (norms := self._run._averaged_batch_norms()):
            named = ", ".join(f"{name}.*" for name in norms[:_MOST_NAMED]) + (", ..." if norms[_MOST_NAMED:] else "")
            event(
                "notice",
                f"batch norm's statistics are averaged over the boards; where boards' data differ, in scale or in classes, "
                f"let each keep its own by join(keep=...): {named}",
            )

    @property
    @override
    def layout(self) -> Layout:
        return self._vector.layout

    @override
    def agreement(self) -> Agreement:
        return Agreement({**self._run._agreement().facts, **plugin_facts(self._recipe)})

    @override
    def initial(self, seed: int) -> Vec:
        return self._ask(self._vector.read)

    @override
    def local_update(self, x: Vec, round: Round, correction: Vec | None = None) -> LocalUpdate:
        opened: Future[LocalUpdate] = Future()
        began_s = time.monotonic()
        self._context.requests.put((lambda: self._run._begin(x, round, opened, correction), opened.set_exception))
        update = self._wait(opened, f"has been at round {round}")
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        self._say_remarks()
        return update

    @override
    def evaluate(self, x: Vec, examples: int | None = None) -> Metrics | None:
        found = self._ask(lambda: self._run._evaluate_at(x))
        self._say_remarks()
        return found

    def require_function(self) -> None:
        """Raise UsageError where the script has given run.evaluate nothing by its first round; it
        is abandoned then."""
        if not self._ask(lambda: self._run._evaluation is not None):
            self.abandon()
            raise UsageError(f"{self._context.script} has no evaluation: give run.evaluate a function")

    def require_evaluation(self, x: Vec, examples: int | None = None) -> Metrics:
        """Evaluate x with the function that `require_function` has seen."""
        found = self.evaluate(x, examples)
        assert found is not None
        return found

    @override
    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        return self._ask(self._run._snapshot)

    @override
    def restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        self._ask(lambda: self._run._restore(snapshot))

    @override
    def state(self, x: Vec | None) -> Mapping[str, NDArray[Any]]:
        return self._ask(lambda: whole_state(self._vector.module, self.layout, x))

    def arrays(self) -> Callable[[Vec], Mapping[str, NDArray[Any]]]:
        """Return what makes the arrays of a coordinator's file of values (`named_arrays`)."""
        return self._ask(lambda: named_arrays(self._vector.module, self.layout))

    @override
    def over(self, x: Vec | None) -> None:
        # It may have a file to write.
        self._ask(lambda: self._run._finish(x))
        self._say_remarks()
        while self._thread.is_alive():
            self._thread.join(_SLOW_S)
            if self._thread.is_alive():
                text = f"{self._context.name} has done its rounds, and waits for the end of {self._context.script}"
                self._event("ending", f"{text}; Ctrl-C ends it")
        self._ended = True
        if self._failure is not None:
            raise self._failure

    @override
    def abandon(self) -> None:
        # As sys.exit would, at the exchange that the script waits in; nothing once it has ended.
        self._context.requests.put((_leave, Future().set_exception))
        self._thread.join(_LEAVE_S)

    def _say_remarks(self) -> None:
        while not self._context.remarks.empty():
            remark = self._context.remarks.get()
            self._event(remark.event, f"{self._context.name}: {remark.text}", **remark.fields)

    def _ask(self, work: Callable[[], T]) -> T:
        if self._ended:
            return work()
        answer: Future[T] = Future()
        self._context.requests.put((lambda: answer.set_result(work()), answer.set_exception))
        return self._wait(answer, "has not come to run.exchange")

    def _wait(self, answer: Future[T], state: str) -> T:
        """What the script's thread answers. Raises UsageError when it has ended instead."""
        began_s = told_s = time.monotonic()
        while True:
            alive = self._thread.is_alive()  # before the look: its last deed may be the answer
            with suppress(TimeoutError):  # of the wait alone: what the script raised is returned here
                answer.exception(_POLL_S if alive else 0.0)
            if answer.done():
                return answer.result()
            if not alive:
                raise self._failure or self._ended_early()
            now_s, patience_s = time.monotonic(), max(_SLOW_S, _SLOW_FACTOR * self._longest_s)
            if now_s - told_s >= patience_s:
                told_s = now_s
                self._event("slow", f"{self._context.script} {state} for {now_s - began_s:.0f} s")

    def _ended_early(self) -> UsageError:
        joined = self._context.joined.done()
        return UsageError(
            f"{self._context.script} ended {'before the run was over' if joined else 'without edgegossip.join(model)'}"
        )

    def _run_script(self) -> None:
        """What the script's thread does."""
        section, path = self._recipe.run, self._context.path
        torch.set_num_threads(section.threads)
        torch.manual_seed(section.seed)
        np.random.seed(section.seed % 2**32)  # noqa: NPY002
        random.seed(section.seed)
        place = {
            "{board}": self._context.name,
            "{index}": str(self._context.index),
            "{boards}": str(section.nodes),
            "{rounds}": str(section.rounds),
        }
        arguments = [_substituted(argument, place) for argument in section.script_args]
        try:
            with running(self._context), _surroundings(path, arguments), _heard(self._context):
                runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                why = error.code if isinstance(error.code, str) else f"exit code {error.code}; what it printed says why"
                self._failure = UsageError(f"{self._context.script} ended itself: {why}")
        except BaseException as error:  # a user's code raises what it likes
            self._failure = self._context.explained(error)


@contextmanager
def _surroundings(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Let a script find what it finds where Python runs it: its arguments, its folder to import
    from, an event loop; but an empty standard input, as nobody is there to answer. What it made of
    them, of the working directory and of where it prints, is as before afterwards."""
    before, folder = (sys.argv, sys.stdin, sys.stdout, sys.stderr), os.getcwd()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    with open(os.devnull) as nothing, closing(asyncio.new_event_loop()) as loop:
        sys.argv, sys.stdin = [str(path), *arguments], nothing
        asyncio.set_event_loop(loop)  # which Python makes by itself on a main thread alone
        try:
            yield
        finally:
            sys.argv, sys.stdin, sys.stdout, sys.stderr = before
            with suppress(OSError):
                os.chdir(folder)


@contextmanager
def _heard(context: Context) -> Iterator[None]:
    """Let a board tell what torch warns of the inputs of layers and losses, such as a target that
    is broadcast, once but for its numbers: in a board's log nobody reads it, and the run would end
    as if all were well. What will not be so in other versions of torch is left to the log."""
    show, told = warnings.showwarning, set[str]()

    def hear(message: Warning | str, *where: Any) -> None:
        show(message, *where)
        frame, text = sys._getframe(1), " ".join(str(message).split())
        while frame.f_globals.get("__name__") == warnings.__name__ and frame.f_back is not None:
            frame = frame.f_back
        of_torch = frame.f_globals.get("__name__") == torch.nn.functional.__name__
        kind = re.sub(r"\d+", "#", text)  # a last batch has another size
        if of_torch and "deprecat" not in text and kind not in told:
            told.add(kind)
            why = f"torch warned {context.script}: {text.removesuffix('.')}"
            context.remarks.put(Remark("doubt", why, {"why": why}))

    warnings.showwarning = hear  # type: ignore[assignment]
    try:
        yield
    finally:
        if warnings.showwarning is hear:
            warnings.showwarning = show


def _leave() -> None:
    raise SystemExit


def _substituted(text: str, place: Mapping[str, str]) -> str:
    for word, value in place.items():
        text = text.replace(word, value)
    return text
