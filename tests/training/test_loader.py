"""Order of examples, augmentation and normalisation."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.training.data.base import Description
from edgegossip.training.loader import PADDING, Augmentation, Normalize, Sampler, crop_and_flip
from edgegossip.training.rng import Purpose, permutation, words


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 2**63 - 1), st.integers(0, 63))
def test_an_epoch_sees_each_example_at_most_once(size, batch_size, seed, node):
    sampler = Sampler(size, batch_size, seed, node)
    for epoch in range(2):
        steps = range(epoch * sampler.batches_per_epoch, (epoch + 1) * sampler.batches_per_epoch)
        seen = np.concatenate([sampler.batch(t) for t in steps])
        assert len(seen) == len(set(seen.tolist())) > size - sampler.batch_size
        assert 0 <= seen.min() <= seen.max() < size


def test_batches_are_a_pure_function_of_the_step():
    forward, backward = Sampler(50, 8, 1, 2), Sampler(50, 8, 1, 2)
    expected = [forward.batch(t).tolist() for t in range(30)]
    assert [backward.batch(t).tolist() for t in reversed(range(30))] == expected[::-1]
    assert expected[0] != expected[forward.batches_per_epoch]
    assert Sampler(50, 8, 1, 3).batch(0).tolist() != expected[0]
    assert Sampler(50, 8, 2, 2).batch(0).tolist() != expected[0]


def test_random_words_are_pinned():
    """Boards with different numpy versions must agree, so the stream itself is part of the
    contract."""
    assert words(1, Purpose.BATCHES, 3, 2, 3).tolist() == [
        18149182522360084646,
        7955322904151365871,
        15435135883144884155,
    ]
    assert permutation(1, Purpose.PARTITION, 8).tolist() == [0, 6, 5, 3, 4, 7, 2, 1]


def test_crop_and_flip_follow_their_random_word():
    images = np.arange(2 * 3 * 6 * 6, dtype=np.uint8).reshape(2, 3, 6, 6)
    random = np.array([5 << 8 | 2 << 32, 4 << 8 | 4 << 32 | 1], np.uint64)
    out = crop_and_flip(images, random)
    padded = np.pad(images, ((0, 0), (0, 0), (PADDING,) * 2, (PADDING,) * 2))
    np.testing.assert_array_equal(out[0], padded[0, :, 5:11, 2:8])
    np.testing.assert_array_equal(out[1], images[1, :, :, ::-1])
    assert out.dtype == np.uint8


@given(st.integers(0, 2**63 - 1), st.integers(0, 63), st.integers(0, 10**6))
def test_augmentation_keeps_shape_and_values_and_repeats(seed, node, step):
    images = np.random.default_rng(0).integers(1, 255, (4, 3, 8, 8), dtype=np.uint8)
    augment = Augmentation(seed, node)
    out = augment(images, step)
    assert out.shape == images.shape
    for before, after in zip(images, out, strict=True):
        assert set(np.unique(after)) <= set(np.unique(before)) | {0}
    np.testing.assert_array_equal(out, augment(images, step))


def test_all_offsets_and_both_directions_occur():
    image = np.zeros((2000, 1, 9, 9), np.uint8)
    image[:, 0, 4, 4] = 1
    out = Augmentation(1, 0)(image, 0)
    _, _, rows, columns = np.nonzero(out)
    assert set(rows) == set(columns) == set(range(9))
    marked = np.zeros((2000, 1, 32, 32), np.uint8)
    marked[:, 0, 16, 8] = 1  # lands left of the middle unless flipped
    flipped = np.nonzero(Augmentation(1, 0)(marked, 0))[3] > 15
    assert 900 < flipped.sum() < 1100  # 4.5 sigma


def test_normaliser():
    about = Description((2, 1, 2), 3, (10.0, 20.0), (2.0, 4.0))
    stored = np.array([[[[12, 8]], [[20, 28]]]], np.uint8)
    assert Normalize.of(about)(stored).tolist() == [[[[1.0, -1.0]], [[0.0, 2.0]]]]
    untouched = np.ones((1, 5), np.float32)
    batch = Normalize.of(Description((5,), 3, (), ()))(untouched)
    assert torch.equal(batch, torch.ones(1, 5))
    batch.zero_()
    assert (untouched == 1).all()
