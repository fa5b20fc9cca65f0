"""The client API: `join` brings a user's own training script into a run, as a `Run`.

`script.py` has the other side, which runs the script and sends it requests.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from traceback import extract_tb, print_exception
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgegossip.agreement import Agreement, Fact, sums
from edgegossip.choices import did_you_mean
from edgegossip.gossip.topologies import NOBODY
from edgegossip.recipe import Recipe
from edgegossip.training.base import require_gradient_steps, require_plain_steps
from edgegossip.training.serialization import find_unserializable, pack, rng_state, set_rng_state, unpack
from edgegossip.training.steps import Remark, Steps, rate_of
from edgegossip.training.vector import ModelVector
from edgegossip.types import ConfigError, LocalUpdate, Metrics, NodeId, Round, UsageError, Vec, scores_problem

Request = tuple[Callable[[], object], Callable[[BaseException], None]]  # what to do; who hears that it failed

_ALONE_ROUNDS = 100  # of a script that was started by itself, and did not say
_MOST_EXAMPLES = 2**53  # as a number that travels
_SCHEMA = ("task", "input", "target", "labels")  # of `edgegossip.agreement`, what a script may add


class Stateful(Protocol):
    """Can be kept in a checkpoint: an optimiser, a scheduler, a stateful data loader."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors, arrays, numbers, text, and dicts and lists of them."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Go on from what `state_dict` gave."""


@dataclass(slots=True)
class Context:
    """Says which run the script of this process is in, and carries the requests of the board's
    program to it."""

    recipe: Recipe
    name: NodeId
    index: int  # among the boards; -1: the coordinator
    ends_at: str = ""  # "join" or "first round": where the script ends, as no more of it is wanted
    requests: SimpleQueue[Request] = field(default_factory=SimpleQueue)
    joined: Future[Run] = field(default_factory=Future)  # set by `join`
    remarks: SimpleQueue[Remark] = field(default_factory=SimpleQueue)  # for the board's program to say
    path: Path = field(init=False)  # of the script, wherever it goes

    def __post_init__(self) -> None:
        self.path = Path(self.recipe.run.script).absolute()

    @property
    def wants_model_only(self) -> bool:
        """Whether only the script's model is wanted: at a coordinator that evaluates nothing, or
        where nobody trains."""
        return self.ends_at == "join" or (self.index < 0 and self.recipe.evaluation.where != "coordinator")

    @property
    def script(self) -> str:
        """The script's file name, for messages."""
        return self.path.name

    def explained(self, error: BaseException) -> UsageError:
        """Return a script's error in one sentence that names the line where it came up; its
        traceback goes into this board's log. A UsageError is such a sentence already."""
        if isinstance(error, UsageError):
            return error
        print_exception(error)
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if Path(frame.filename) == self.path]
        where = f", line {lines[-1]}" if lines else ""
        kind = f"{self.script}{where}: {type(error).__name__}"
        hint = ""
        if self.index < 0 and not self.joined.done():
            hint = "; this is the coordinator, which has no board's data: let the script read them after its join"
        told = UsageError(f"{kind}: {error}{hint}")
        told.public_message = f"{kind} (its message stays in that board's log)"
        told.__cause__ = error
        return told


_context: Context | None = None  # of this process: it runs one script


@contextmanager
def running(context: Context) -> Iterator[None]:
    """Have `join` find this run, on any thread, until the script has ended."""
    global _context
    _context = context
    try:
        yield
    finally:  # a notebook, which coordinates a run here, may take part in another one later
        if _context is context:
            _context = None


def join(
    model: nn.Module,
    *,
    state: Sequence[Stateful] = (),
    share: Sequence[str] | str = (),
    keep: Sequence[str] | str = (),
    rounds: int | None = None,
    schema: Mapping[str, str] | None = None,
) -> Run:
    """Take part in the run that this script was started for, with this model.

    Example:
        with edgegossip.join(model, state=[optimizer]) as run:
            for round in run.rounds():
                loss = train_some_steps(model, optimizer)
                run.exchange(loss=loss, examples=len(dataset))

    At a coordinator that leaves evaluation to the boards it does not return: the script ends here,
    as all that is wanted of it there is the model, so what comes after it may need data.

    Args:
        model: any module, on any device. Its parameters that require a gradient travel, and its
            floating-point buffers (`ModelVector`). Every board builds the same one, from the same
            seed, which the launcher has set; boards that start from different values are refused.
        state: what a board that is started again needs to go on: optimisers, schedulers, loaders.
            Their `state_dict` is kept with the model's after each round.
        share: patterns over parameter names, such as "backbone.*"; only what matches travels.
        keep: patterns of what stays on this board, such as a personal head or "*.bn*".
        rounds: how many rounds a script trains that was started by itself, without edgegossip; its
            `exchange` then hands nothing to anybody. In a run, run.rounds counts, and the log says
            so where the two differ.
        schema: what all boards must have alike and the model does not show, any of "task", "input",
            "target" and "labels", such as {"labels": "cat, dog"}; who differs is refused, by name.

    Returns:
        The `Run`, for a `with` statement.

    Raises:
        UsageError: when the model cannot take part, with what to do about it.
    """
    context = _context
    for name in schema or {}:
        if name not in _SCHEMA:
            raise UsageError(
                f"schema: there is no {name!r}{did_you_mean(name, _SCHEMA)} (choices: {', '.join(_SCHEMA)})"
            )
    if rounds is not None and rounds < 1:
        raise UsageError(f"rounds is {rounds}: give join at least one round, or leave rounds out")
    if context is None:
        return Run(None, ModelVector(model, _patterns(share), _patterns(keep)), state, rounds or _ALONE_ROUNDS, {})
    if context.joined.done():
        raise UsageError("join was called twice: a script takes part in one run, with one model")
    if context.index < 0 and context.recipe.evaluation.where == "coordinator" and (share or keep):
        raise UsageError(
            'evaluation.where = "coordinator": share and keep of join leave a part of the model on each board, which the '
            'coordinator has not; set evaluation.where = "boards"'
        )
    vector = ModelVector(model, _patterns(share), _patterns(keep))
    run = Run(context, vector, state, context.recipe.run.rounds, dict(schema or {}), rounds)
    context.joined.set_result(run)
    if context.wants_model_only:
        raise SystemExit(0)
    return run


class Run:
    """Takes part in a run for a script; `join` makes it. Use it as a context manager.

    A loop either goes over `rounds` and calls `exchange` once in each, or calls `start` once and
    then `exchange`, for as long as they return true.

    Attributes:
        name: this board's name; "alone" of a script that was started by itself.
        index: this board's number, from 0 of `boards`.
        boards: how many boards the run has.
        round: the round that the loop is at, from 0 of `total_rounds`.
        total_rounds: how many rounds the run has.
        alone: whether nothing is exchanged: of a script that was started by itself, and where
            `run --alone` trains each board by itself.
    """

    def __init__(
        self,
        context: Context | None,
        vector: ModelVector,
        state: Sequence[Stateful],
        rounds: int,
        schema: Mapping[str, Any],
        asked_rounds: int | None = None,
    ) -> None:
        self._context, self._vector, self._state, self._schema = context, vector, tuple(state), schema
        self.total_rounds = rounds
        self.name: NodeId = "alone" if context is None else context.name
        self.index, self.boards = (0, 1) if context is None else (context.index, context.recipe.run.nodes)
        recipe = None if context is None else context.recipe
        self.alone = recipe is None or (recipe.run.mode == "gossip" and recipe.gossip.topology == NOBODY)
        self.round: Round = 0
        self._asked_rounds = asked_rounds  # what the script gave `join`
        self._thread = threading.get_ident()
        self._evaluation: Callable[[], Mapping[str, float] | float] | None = None
        self._open: Future[LocalUpdate] | None = None  # the round that the user's loop is at
        self._before: Vec | None = None  # the values that it began with
        self._corrected = False  # in each of its steps
        self._steps = Steps(vector)
        self._left_out: set[str] = set()  # of evaluations
        self._remarks: SimpleQueue[Remark] = SimpleQueue() if context is None else context.remarks
        self._started = self._over = self._trained = self._evaluating = False
        self._proven = False  # what is kept can be read back
        # Whether the loop over `rounds` has still to exchange; None: there is no such loop.
        self._due: bool | None = None
        # Fingerprints of frozen parameters before training, by their memory.
        self._frozen_at_start: dict[int, tuple[int, int]] = {}
        self._facts: Mapping[str, Fact] = {} if context is None else self._facts_now()
        self._require_as_joined()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave when the run is over. Raises UsageError when the script leaves it early."""
        if error is None and not self._over:
            self._over = True
            if self._context is not None:
                raise UsageError(
                    f"{self._context.script} left the run in round {self.round} of {self.total_rounds}: "
                    "loop over run.rounds() to its end"
                )

    def rounds(self) -> Iterator[Round]:
        """Yield the number of each round that is left; the model then holds the values to train
        from.

        A board that was started again goes on where it was. The coordinator has no rounds: it
        evaluates here until the run is over. Raises UsageError when a round ends without
        `exchange`.
        """
        going_on = self.start()
        while going_on:
            round = self.round
            self._due = True
            yield round
            if self._due:
                raise UsageError(f"the loop left round {round} without run.exchange(...): call it once in every round")
            going_on = not self._over

    def start(self) -> bool:
        """Wait until the first round begins, and return whether there is one; the model then holds
        the values to train from.

        `rounds` calls it; loops that count steps, as those of other frameworks, call it themselves.

        Example:
            going_on, step = run.start(), 0
            while going_on:
                loss = train_step()
                step += 1
                if step % 20 == 0:
                    going_on = run.exchange(loss=loss, steps=20)
        """
        self._check_thread()
        if not self._started:
            self._started = True
            if self._facts and (now := self._facts_now()) != self._facts:
                what = (
                    "values" if now.get("base") == self._facts.get("base") else "frozen parameters, or values of them,"
                )
                raise UsageError(
                    f"the model had other {what} at the join than now, before its first round: load weights before the join"
                    + ("" if what == "values" else ", and freeze there")
                )
            frozen = [p for p in self._vector.module.parameters() if not p.requires_grad]
            self._frozen_at_start = {p.data_ptr(): _fingerprint(p) for p in frozen}
            if self._context is None:
                self._open = Future()
            else:
                self._steps.watch(list(self._optimizers()))
                if self._context.ends_at:
                    raise SystemExit(0)
                self._serve()
        return not self._over

    def exchange(
        self,
        *,
        loss: float,
        examples: int | None = None,
        steps: int = 1,
        lr: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> bool:
        """Hand over what this round's training made of the model, and wait for the model that is
        mixed with the other boards', which the module then holds.

        Args:
            loss: mean training loss of the round, for the log; the run ends here if it is not
                finite.
            examples: how many examples of its own this board trains on; a coordinator weighs the
                board's update by it. None, on every board: all count the same.
            steps: optimiser steps since the last exchange. Boards may take different numbers.
            lr: learning rate of the round; by default that of the first optimiser in `state`, a
                mean over its steps.
            metrics: more figures of the round by name, for the log; `loss`, `lr` and `examples` are
                taken.

        Returns:
            Whether another round follows.

        Raises:
            UsageError: when it is called twice in a round, or on another thread than `join`.
        """
        self._check_thread()
        if self._evaluating:
            raise UsageError(
                "run.exchange was called in the function of run.evaluate: call it in the loop over run.rounds()"
            )
        if self._open is None:
            state = "before run.rounds() or run.start()" if not self._started else "after the run was over"
            raise UsageError(f"run.exchange was called {state}: call it once in each round")
        if self._due is False:
            raise UsageError("run.exchange was called twice in a round: call it once in every round of run.rounds()")
        self._due = None if self._due is None else False
        try:
            try:
                number = float(loss)
            except (TypeError, ValueError) as error:
                kind = type(loss).__name__
                raise UsageError(
                    f"loss is no number, but a {kind}: give exchange the mean loss of the round"
                ) from error
            # Nothing here holds the update while others mix it.
            self._open.set_result(self._update(number, examples, steps, lr, metrics or {}))
        except UsageError as error:
            self._open.set_exception(error)
            raise
        finally:
            self._open = None
        if self._context is None:
            self._go_on_alone()
        else:
            self._serve()
        return not self._over

    def evaluate(self, function: Callable[[], Mapping[str, float] | float]) -> Callable[..., Any]:
        """Have `function` called whenever the run evaluates (evaluation.every, and at its end).

        The model then holds the mixed values, and gradients are off. The function returns scores by
        name; "loss" and "examples" among them, where given, say the mean loss and over how many
        examples; one number alone is the accuracy. Returns `function`, so this can be a decorator.

        Example:
            @run.evaluate
            def test() -> dict[str, float]:
                return {"accuracy": accuracy(model, test_loader)}
        """
        self._evaluation = function
        return function

    def add_state(self, *state: Stateful) -> None:
        """Keep more in this board's checkpoints, as `state` of `join` does: for what is made later,
        such as a scheduler that needs `total_rounds`, or a framework's own optimiser.

        Raises UsageError after `start`, when a checkpoint has been taken in already."""
        if self._started:
            raise UsageError("run.add_state was called after the first round began: call it before rounds or start")
        self._state += state

    def require_own(self, params: Iterable[Tensor], whose: str) -> None:
        """Raise UsageError, which names `whose` these parameters are, where none is the joined
        model's. For what trains a model in the script's place, such as a framework's Trainer; a
        module around the joined one shares its parameters."""
        self._steps.require(params, whose)

    # What follows is for `ScriptWorkload`, which has it carried out on the script's thread.

    def _agreement(self) -> Agreement:
        """What this board's model and the user's schema said at the join."""
        return Agreement({**self._facts, **self._schema})

    def _begin(self, x: Vec, round: Round, opened: Future[LocalUpdate], correction: Vec | None) -> None:
        """Begin a round from x; `opened` gets its update. `correction`, float32[n], is added to the
        gradients of each step."""
        # What training adds is the difference to what it began with. A bfloat16 model begins with x
        # rounded; the float32 model of the run keeps the digits that this one lacks.
        self._before = self._vector.write(x)
        self._corrected = correction is not None
        self._steps.begin_round(self._before, correction)
        self.round, self._open = round, opened

    def _evaluate_at(self, x: Vec | None) -> Metrics | None:
        """Evaluate x with the user's function, None: the model as it is. It has the round's own
        values afterwards, and the random numbers go on as if nothing had been: loaders draw one for
        each pass."""
        if self._evaluation is None:
            return None
        # Each module's own mode: a user may train with a frozen batch norm.
        modes, chance = [(m, m.training) for m in self._vector.module.modules()], rng_state()
        held = None if x is None else self._vector.read()
        if x is not None:
            self._vector.write(x)
        self._evaluating = True
        try:
            with torch.no_grad():
                found, unknown = _metrics(self._evaluation())
            for name in [name for name in unknown if name not in self._left_out]:
                self._left_out.add(name)
                self._remarks.put(Remark("left-out", f"the evaluation's {name} is no finite number: it is left out"))
            return found
        finally:
            self._evaluating = False
            for module, training in modes:
                module.training = training
            if held is not None:
                self._vector.write(held)
            set_rng_state(chance)

    def _snapshot(self) -> Mapping[str, NDArray[Any]]:
        """What another process needs beside the model: states, random numbers, and what of the
        model stays on this board (`serialization`). Raises UsageError for a state that could be
        written and not be read back.

        Without frozen parameters that nothing has written to since the first round began: they are
        what the script makes them, and may be most of the model."""
        kept: dict[str, Any] = {
            "states": [s.state_dict() for s in self._state],
            "rest": {
                name: t
                for name, t in self._vector.local_state().items()
                if self._frozen_at_start.get(t.data_ptr()) != _fingerprint(t)
            },
            "extra": self._vector.extra_state(),
            **rng_state(),
        }
        if not self._proven:
            self._require_readable(kept["states"], kept["extra"])
            self._proven = self._trained  # an optimiser has no state before its first step
        return {"script": pack(kept)}

    def _averaged_batch_norms(self) -> list[str]:
        """The names of batch norms whose statistics travel."""
        travels = {tensor.name for tensor in self._vector.layout.tensors}
        modules = self._vector.module.named_modules()
        return [n for n, m in modules if isinstance(m, _BatchNorm) and f"{n}.running_mean" in travels]

    def _restore(self, snapshot: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `_snapshot` gave. Raises UsageError when it is of another script."""
        try:
            kept = unpack(snapshot["script"])
            states = kept["states"]
            if len(states) != len(self._state):
                raise UsageError(f"the checkpoint has {len(states)} states, join was given {len(self._state)}")
            for mine, state in zip(self._state, states, strict=True):
                mine.load_state_dict(state)
            self._vector.module.load_state_dict(kept["rest"] | kept["extra"], strict=False)
            set_rng_state(kept)
        except UsageError:
            raise
        except Exception as error:  # whatever a user's load_state_dict raises
            raise UsageError(f"its checkpoint does not fit the script: {type(error).__name__}: {error}") from error

    def _finish(self, x: Vec | None) -> None:
        """End the run: x is the model that came of it, None where this board was not told it."""
        if x is not None:
            self._vector.write(x)
        self._over = True
        if remark := self._steps.end():
            self._remarks.put(remark)

    def _require_readable(self, states: Sequence[Any], extra: Mapping[str, Any]) -> None:
        """Say at the first checkpoint, and not after a crash, what could not be restored from
        it."""
        if found := find_unserializable(extra):
            raise UsageError(
                f"the model could not be restored: its state_dict(){found}; let get_extra_state return tensors, arrays, "
                "numbers, text, and dicts and lists of them"
            )
        for k, (whose, state) in enumerate(zip(self._state, states, strict=True)):
            if found := find_unserializable(state):
                raise UsageError(
                    f"state {k} of join, a {type(whose).__name__}, could not be restored: its state_dict(){found}; let it "
                    "return tensors, arrays, numbers, text, and dicts and lists of them"
                )

    def _serve(self) -> None:
        """Carry out requests until a round begins or the run is over."""
        assert self._context is not None
        while self._open is None and not self._over:
            work, failed = self._context.requests.get()
            try:
                work()
            except Exception as error:  # of the user's evaluation, or of a state_dict
                failed(self._context.explained(error))
            del work, failed  # with the models in them, before the wait for the next one

    def _update(
        self, loss: float, examples: int | None, steps: int, lr: float | None, metrics: Mapping[str, float]
    ) -> LocalUpdate:
        stepped, rate = self._steps.taken()  # as far as an optimiser in `state` tells
        if lr is None or (self._corrected and stepped):
            lr = next(map(rate_of, self._optimizers()), 1.0) if rate is None else rate
        if not math.isfinite(lr):
            raise UsageError(f"lr is {lr}: give exchange the learning rate of the round, or leave it out")
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise UsageError(f"steps is {steps!r}: give exchange the number of optimiser steps since the last one")
        if examples is not None and not 1 <= examples <= _MOST_EXAMPLES:
            raise UsageError(
                f"examples is {examples}: a board trains on at least one; without it all boards count the same"
            )
        if taken := {"loss", "lr", "examples"} & set(metrics):
            raise UsageError(f"metrics has {min(taken)!r}, which exchange tells already: give it another name")
        if not math.isfinite(loss):
            raise UsageError(f"the training loss became {loss} in round {self.round}; try a smaller learning rate")
        self._require_as_joined()
        delta, corrected = self._vector.read(), False
        if not np.isfinite(delta).all():
            raise UsageError(f"the model holds a value that is not finite after round {self.round}")
        if self._before is not None:  # else it trains alone, and nobody asks
            last = self._steps.sampled(delta)
            delta -= self._before
            change = delta[: self._vector.layout.trainable_size]
            # In a round that a GradScaler left out as a whole there was no step to correct.
            corrected = self._corrected and (stepped > 0 or not change.any())
            remarks = [self._steps.end_round(self.round, change, last)]
            if not self.alone:
                remarks.append(self._steps.changed_frozen(self.round))
            for remark in filter(None, remarks):
                self._remarks.put(remark)
        self._before, self._trained = None, True
        return LocalUpdate(
            delta=delta,
            consumable=True,
            lr=lr,
            loss=loss,
            examples=0,  # how many of them the round saw is the script's affair
            steps=stepped if corrected else steps,
            holds=int(examples or 1),
            metrics={str(name): float(value) for name, value in metrics.items()},
            corrected=corrected,
        )

    def _facts_now(self) -> dict[str, Fact]:
        values = self._vector.read()
        if not np.isfinite(values).all():
            wrong = next(n for n, view in self._vector.layout.views(values).items() if not np.isfinite(view).all())
            raise UsageError(f"{wrong} holds a NaN or an infinity at the join, or a value too large for float32")
        return {**self._vector.facts(), "start": sums(values)}

    def _require_as_joined(self) -> None:
        """Raise UsageError for what came after the join and cannot be: an optimiser or a group of
        parameters that does not suit the algorithm, a parameter that would not travel."""
        if name := self._vector.newly_unfrozen():
            raise UsageError(
                f"parameter {name} requires a gradient now and did not at the join, so it would not travel: unfreeze or add it "
                "before the join, or name it in keep"
            )
        if self._context is None:
            return
        recipe = self._context.recipe
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                kind, momentum = type(optimizer).__name__.lower(), float(group.get("momentum", 0.0))
                try:
                    if recipe.run.mode == "gossip":
                        require_gradient_steps(recipe.gossip, kind, momentum)
                    else:
                        require_plain_steps(recipe.server, kind, momentum)
                except ConfigError as error:
                    raise UsageError(f"{self._context.script}: {error}") from error

    def _optimizers(self) -> Iterator[Any]:
        return (state for state in self._state if getattr(state, "param_groups", None))

    def _go_on_alone(self) -> None:
        """The next round of a script that takes part in no run: its model is its own."""
        done, every = self.round, max(1, self.total_rounds // 10)
        if self._evaluation is not None and ((done + 1) % every == 0 or done + 1 == self.total_rounds):
            found = self._evaluate_at(None)
            assert found is not None
            figures = {"loss": found.loss, **found.scores}
            words = ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if math.isfinite(value))
            print(f"round {done + 1} of {self.total_rounds}, alone: {words}", flush=True)
        if done + 1 >= self.total_rounds:
            self._over = True
        else:
            self.round, self._open = done + 1, Future()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise UsageError("run was used on another thread than join: one thread trains and exchanges")


def _patterns(given: Sequence[str] | str) -> Sequence[str]:
    return (given,) if isinstance(given, str) else tuple(given)


def _metrics(found: Mapping[str, float] | float) -> tuple[Metrics, list[str]]:
    """What a user's evaluation returned, and the names of what is left out of it
    (`Metrics.known`). Raises UsageError when that is no number, or no mapping of them."""
    try:
        scores = (
            {"accuracy": float(found)}
            if not isinstance(found, Mapping)
            else {str(name): float(value) for name, value in found.items()}
        )
    except (TypeError, ValueError):
        raise UsageError(f"the evaluation returned {found!r}: return a number, or numbers by name") from None
    if not scores:
        raise UsageError("the evaluation returned nothing: return a number, or numbers by name")
    examples = scores.pop("examples", 1.0)
    if not math.isfinite(examples):
        raise UsageError(f"the evaluation cannot be used: it was over {examples} examples")
    metrics, unknown = Metrics.known(scores, max(1, int(examples)))
    if problem := scores_problem(metrics.scores):
        raise UsageError(f"the evaluation cannot be used: {problem}")
    return metrics, unknown


def _fingerprint(tensor: torch.Tensor) -> tuple[int, int]:
    """What tells whether a tensor has been written to: torch's count of that, which writing through
    `.data` passes by, and the sum of its values' bits."""
    flat = tensor.detach().resolve_conj().reshape(-1)
    bits = flat.view({1: torch.uint8, 2: torch.int16}.get(flat.element_size(), torch.int32))
    return tensor._version, int(bits.sum(dtype=torch.int64))
