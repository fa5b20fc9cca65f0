"""Patient: as `await`, but a cancelled awaiter leaves the operation running to its end."""

import asyncio
import gc
import weakref

import pytest

from edgegossip.mesh.patient import Patient


class Gate:
    """An operation with one future, as gRPC's batches, and a record of what became of it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.seen: list[object] = []

    async def operation(self) -> int:
        try:
            value = await self.future
        except BaseException as error:
            self.seen.append(type(error))
            raise
        await asyncio.sleep(0)
        self.seen.append(value)
        return value + 1


async def _turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _await(operation: Patient[int]) -> int:
    return await operation


async def _returns_and_raises(late: bool) -> None:
    good, bad = Gate(), Gate()
    loop = asyncio.get_running_loop()
    for finish in (lambda: good.future.set_result(1), lambda: bad.future.set_exception(ValueError("theirs"))):
        loop.call_later(0.001, finish) if late else finish()
    assert await Patient(good.operation()) == 2
    with pytest.raises(ValueError, match="theirs"):
        await Patient(bad.operation())


@pytest.mark.parametrize("late", [False, True])
def test_it_returns_and_raises_what_the_operation_does(late: bool):
    asyncio.run(_returns_and_raises(late))


def test_an_operation_that_never_waits():
    async def at_once() -> int:
        return 7

    async def run() -> None:
        assert await Patient(at_once()) == 7

    asyncio.run(run())


def test_a_cancelled_awaiter_goes_at_once_and_the_operation_ends_later():
    async def run() -> None:
        gate = Gate()
        task = asyncio.ensure_future(_await(Patient(gate.operation())))
        await _turns()
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.seen == []
        assert not gate.future.cancelled()
        gate.future.set_result(5)
        await _turns()
        assert gate.seen == [5]

    asyncio.run(run())


def test_cancelled_between_two_waits_of_the_operation():
    async def run() -> None:
        gate = Gate()
        task = asyncio.ensure_future(_await(Patient(gate.operation())))
        gate.future.set_result(5)
        await _turns(1)  # it stands at its second wait, a bare yield
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _turns()
        assert gate.seen == [5]

    asyncio.run(run())


def test_cancelled_as_the_operation_ends():
    async def run() -> None:
        gate = Gate()
        task = asyncio.ensure_future(_await(Patient(gate.operation())))
        await _turns()
        gate.future.set_result(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _turns()
        assert gate.seen == [5]

    asyncio.run(run())


def test_an_operation_that_fails_when_nobody_awaits_it_any_more(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        gate = Gate()
        task = asyncio.ensure_future(_await(Patient(gate.operation())))
        await _turns()
        task.cancel()
        await asyncio.wait({task})
        gate.future.set_exception(ValueError("late"))
        await _turns()
        assert gate.seen == [ValueError]

    asyncio.run(run())
    assert not caplog.records


def test_a_timeout_around_it():
    async def run() -> None:
        gate = Gate()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await Patient(gate.operation())
        gate.future.set_result(1)
        await _turns()
        assert gate.seen == [1]

    asyncio.run(run())


def test_nothing_stays_of_an_operation_that_has_ended():
    async def run() -> weakref.ref[Gate]:
        gate = Gate()
        task = asyncio.ensure_future(_await(Patient(gate.operation())))
        await _turns()
        task.cancel()
        await asyncio.wait({task})
        gate.future.set_result(1)
        await _turns()
        return weakref.ref(gate)

    left = asyncio.run(run())
    gc.collect()
    assert left() is None
