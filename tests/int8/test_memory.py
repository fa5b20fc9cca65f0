"""Memory that waits for the next tensor: used again, never by two at a time, and not without
bound."""

import copy
import gc
import io
import itertools
import pickle
import random
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from edgegossip import int8
from edgegossip.int8 import functional, memory, norms

SIZE = (4, 32, 32, 16)
BYTES = 4 * 4 * 32 * 32 * 16


@pytest.fixture(scope="module", autouse=True)
def others_are_here_to_stay():
    """What the process has by now is looked through once, not by every collection of a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_waits():
    gc.collect()
    memory.give_back()
    yield
    memory.give_back()


def test_memory_of_a_tensor_that_is_gone_serves_the_next():
    first = memory.empty(SIZE)
    place = first.data_ptr()
    view = first[1:]
    del first
    second = memory.empty(SIZE)
    assert second.data_ptr() != place  # the view still needs it
    del view
    assert memory.waiting_bytes() == BYTES
    assert memory.empty(SIZE).data_ptr() == place
    del second
    assert memory.waiting_bytes() == 2 * BYTES
    int8.give_back()
    assert memory.waiting_bytes() == 0


def test_tensors_are_as_torchs():
    for size in (SIZE, (1, 2, 3, 5)):
        made, expected = memory.empty_nchw(size), torch.empty(size).permute(0, 3, 1, 2)
        assert (made.shape, made.stride(), made.dtype) == (expected.shape, expected.stride(), expected.dtype)
        assert not made._is_view() and made.storage_offset() == 0 and made.data_ptr() % 16 == 0
    for dtype in (torch.int8, torch.uint8):
        made = memory.empty((3, 70000), dtype)
        assert (made.shape, made.stride(), made.dtype) == ((3, 70000), (70000, 1), dtype)
        assert made.data_ptr() % 64 == 0 and made.untyped_storage().nbytes() == 210000


def test_free_neighbours_are_one():
    """What many small tensors leave behind serves a large one, in whatever order they went."""
    for order in itertools.permutations(range(4)):
        small = {k: memory.empty(SIZE) for k in range(4)}
        last = memory.empty(SIZE)
        for k in order:
            del small[k]
        assert memory.waiting_bytes() == 4 * BYTES
        large = memory.empty((4 * SIZE[0], *SIZE[1:]))
        assert memory.waiting_bytes() == 0
        del large, last


def test_tensors_never_lie_on_each_other():
    """Random tensors, some kept and some not, each with its own number in it, beyond the first
    span."""
    draw, kept, most = random.Random(0), {}, 0
    for number in range(600):
        if kept and draw.random() < 0.45:
            gone = draw.choice(list(kept))
            assert bool((kept.pop(gone) == gone % 100).all())
        else:
            size = draw.choice((70_000, 300_000, 1_000_001, 5_000_000))
            kept[number] = memory.empty((size,), torch.int8).fill_(number % 100)
        most = max(most, sum(t.numel() for t in kept.values()))
    assert all(bool((tensor == number % 100).all()) for number, tensor in kept.items())
    assert most > 64 << 20 and memory.waiting_bytes() < most
    kept.clear()
    memory.give_back()
    assert memory.waiting_bytes() == 0


def test_threads_do_not_get_the_same_memory():
    def stays(number):
        filled = (memory.empty((70_000,), torch.int8).fill_(number) for _ in range(300))
        return all(bool((mine == number).all()) for mine in filled)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(stays, range(4))) == [True] * 4


def small_network():
    torch.manual_seed(0)
    return int8.convert(
        nn.Sequential(nn.Conv2d(3, 32, 3), norms.RangeEvoNorm(32), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3))
    )


def test_a_step_asks_the_system_for_nothing_that_the_step_before_had():
    """Each page that the system gives out is a fault at its first use."""
    model, x = small_network(), torch.randn(16, 3, 34, 34)
    faults, waiting = [], []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        model(x).sum().backward()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        gc.collect()
        waiting.append(memory.waiting_bytes())
    assert waiting[0] > 0 and len(set(waiting[1:])) == 1
    assert max(faults[2:]) * resource.getpagesize() < waiting[0] / 20, faults


def a_copy_and_its_copy():
    first = copy.deepcopy(small_network())
    return [first, copy.deepcopy(first)]


@pytest.mark.parametrize(
    "models", [lambda: [small_network(), small_network()], a_copy_and_its_copy], ids=["two", "copies"]
)
def test_memory_goes_with_the_last_model(models):
    there = models()
    there[1](torch.randn(16, 3, 34, 34)).sum().backward()
    del there[0]
    gc.collect()
    assert memory.waiting_bytes() > 0
    there.clear()
    gc.collect()
    assert memory.waiting_bytes() == 0


def unpickled(model):
    return pickle.loads(pickle.dumps(model))


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def first_layers(model):
    return model[:2]


@pytest.mark.parametrize("remake", [copy.deepcopy, copy.copy, unpickled, saved_and_loaded, first_layers])
def test_memory_stays_with_what_is_made_of_a_model_and_goes_with_it(remake):
    made, x = remake(small_network()), torch.randn(16, 3, 34, 34)
    gc.collect()  # the model itself is gone now
    unrelated = small_network()
    made(x).sum().backward()
    waiting = memory.waiting_bytes()
    assert waiting > 0
    del unrelated
    gc.collect()
    assert memory.waiting_bytes() == waiting  # `made` still trains
    del made
    gc.collect()
    assert memory.waiting_bytes() == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda x: functional.relu(x),
        lambda x: nn.functional.pad(x, (1, 1, 1, 1)),
        lambda x: x[:, :, ::2, ::2],
        lambda x: functional.max_pool2d(x, (2, 2), (2, 2), (0, 0)),
        lambda x: x.flatten(1),
    ],
    ids=["relu", "pad", "slice", "max_pool", "flatten"],
)
def test_a_tensor_with_the_scales_of_another_keeps_nothing_of_it(change):
    part = functional.quantise(torch.randn(4, 8, 6, 6))
    with torch.no_grad():
        x = part + part  # in one piece of memory
        made = change(x)
    assert x.block is not None and torch.equal(made.scale, x.scale) and torch.equal(made.zero, x.zero)
    assert {t.untyped_storage().data_ptr() for t in (made.q, made.scale, made.zero)}.isdisjoint(
        [x.block.untyped_storage().data_ptr()]
    )
