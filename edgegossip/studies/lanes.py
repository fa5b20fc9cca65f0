"""Lets virtual nodes compute at the same time: each on the thread of its lane, where there are
several.

What a node computes depends on nothing that another one does meanwhile, so it is the same to the
bit in any number of lanes; only when it is known differs. A lane does what it is given in order."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, TypeVar

from edgegossip import training
from edgegossip.recipe import Recipe

P = ParamSpec("P")
T = TypeVar("T")


class Lanes:
    """Has the work of node k done in lane k modulo `count`; with one lane at once, by who gives it.

    Example:
        with Lanes(2) as lanes:
            updates = [lanes.submit(k, workloads[k].local_update, x, 0) for k in range(8)]
            losses = [update.result().loss for update in updates]
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._threads = [ThreadPoolExecutor(1, f"lane-{k}") for k in range(count)] if count > 1 else []

    def submit(self, node: int, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a node's work, and return what will hold its result, or what it raised. In one lane
        it is done here, and raises here."""
        if self._threads:
            context = contextvars.copy_context()  # what numpy makes of an overflow
            return self._threads[node % self.count].submit(lambda: context.run(function, *args, **kwargs))
        done: Future[T] = Future()
        done.set_result(function(*args, **kwargs))
        return done

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *exception: object) -> None:
        """Drop what has not begun, and wait for what has."""
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)


def lanes_of(recipe: Recipe) -> tuple[int, Recipe]:
    """Return the number of lanes for `run.threads`, and the recipe as one lane computes it.

    Threads across nodes do what threads inside an operation cannot: all the time, and with the bits
    of one thread. Where nodes would get in each other's way there is one lane, with all threads."""
    lanes = min(recipe.run.threads, recipe.run.nodes)
    if lanes < 2 or not training.can_be_together(recipe):
        return 1, recipe
    return lanes, replace(recipe, run=replace(recipe.run, threads=1))
