"""Memory that waits for the next tensor of its size: used again, never by two at a time, and not without bound."""

import gc

import torch
from torch import nn

from edgegossip import int8
from edgegossip.int8 import memory, norms

SIZE = (4, 32, 32, 16)


def test_memory_of_a_tensor_that_is_gone_serves_the_next_of_its_size():
    memory.POOL.drop()
    first = memory.empty(SIZE)
    place = first.data_ptr()
    view = first[1:]
    del first
    assert memory.empty(SIZE).data_ptr() != place  # the view still needs it
    del view
    gc.collect()
    assert memory.POOL.waiting_bytes == 2 * 4 * 4 * 32 * 32 * 16
    assert {memory.empty(SIZE).data_ptr() for _ in range(5)} <= {place, memory.empty(SIZE).data_ptr()}
    memory.POOL.drop()
    assert memory.POOL.waiting_bytes == 0


def test_tensors_are_as_torchs():
    for size in (SIZE, (1, 2, 3, 5)):
        made, expected = memory.empty_nchw(size), torch.empty(size).permute(0, 3, 1, 2)
        assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert not made._is_view() and made.storage_offset() == 0 and made.data_ptr() % 16 == 0
    made = memory.empty((3, 70000), torch.int8)
    assert (made.shape, made.stride(), made.dtype) == ((3, 70000), (70000, 1), torch.int8)
    assert made.data_ptr() % 64 == 0


def test_what_waits_is_bounded_and_the_sizes_used_last_stay():
    pool = memory.Pool()
    for size in range(100_000, 200_000, 1000):
        lent = pool.take(size)
        del lent
    assert 100_000 < pool.waiting_bytes <= 2 * 200_000
    before = pool.waiting_bytes
    lent = pool.take(199_000)
    assert pool.waiting_bytes == before - 199_000
    del lent


def test_a_step_asks_the_system_for_nothing_that_the_step_before_had(monkeypatch):
    torch.manual_seed(0)
    model = int8.convert(
        nn.Sequential(nn.Conv2d(3, 32, 3), norms.RangeEvoNorm(32), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3))
    )
    x = torch.randn(16, 3, 34, 34)
    memory.POOL.drop()
    asked = []
    monkeypatch.setattr(
        memory, "np", type("Watched", (), {"empty": lambda *a: asked.append(a) or real(*a), "uint8": memory.np.uint8})
    )
    for _ in range(3):
        before = len(asked)
        model(x).sum().backward()
    assert before > 0 and len(asked) == before


real = memory.np.empty
