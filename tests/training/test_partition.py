"""Partitions: every example exactly once, nobody empty, the degree of skew as defined."""

import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip.training import partition_counts
from edgegossip.training.partition import by_dirichlet, by_skew, partition
from edgegossip.types import ConfigError
from tests.training.fakes import recipe

labels_lists = st.lists(st.integers(0, 9), min_size=1, max_size=300).map(np.array)


@given(labels_lists, st.integers(1, 20), st.floats(0, 1), st.integers(0, 2**63 - 1))
def test_skew_uses_every_example_once_and_sizes_are_even(labels, nodes, skew, seed):
    if len(labels) < nodes:
        return
    shares = by_skew(labels, nodes, skew, seed)
    assert sorted(np.concatenate(shares)) == list(range(len(labels)))
    sizes = [len(s) for s in shares]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 2


@given(labels_lists, st.integers(1, 20), st.floats(1e-3, 1e6), st.integers(0, 2**63 - 1))
def test_dirichlet_uses_every_example_once_and_leaves_nobody_empty(labels, nodes, alpha, seed):
    if len(labels) < nodes:
        return
    shares = by_dirichlet(labels, nodes, alpha, seed)
    assert sorted(np.concatenate(shares)) == list(range(len(labels)))
    assert min(len(s) for s in shares) >= 1


def counts(shares, labels):
    return np.stack([np.bincount(labels[s], minlength=10) for s in shares])


def test_sorted_gives_each_of_ten_boards_one_class():
    labels = np.tile(np.arange(10), 100)
    assert (counts(by_skew(labels, 10, 1.0, 3), labels) == 100 * np.eye(10)).all()


def test_half_skew_puts_half_of_a_class_on_its_board_and_spreads_the_rest():
    labels = np.tile(np.arange(10), 1000)
    table = counts(by_skew(labels, 10, 0.5, 3), labels)
    own = np.diag(table)
    others = table[~np.eye(10, dtype=bool)]
    # 500 sorted ones and about 50 of the 5,000 shuffled; the others have about 50 (binomial, 5
    # sigma = 34).
    assert (np.abs(own - 550) < 34).all()
    assert (np.abs(others - 50) < 34).all()


def test_what_does_not_divide_goes_to_other_boards_in_each_pool() -> None:
    shares = by_skew(np.zeros(14, int), 4, 0.5, 1)  # two pools of seven
    assert [len(share) for share in shares] == [3, 4, 4, 3]


def test_skew_pool_takes_the_first_examples_of_a_class():
    labels = np.repeat([0, 1], 10)
    shares = by_skew(labels, 2, 0.5, 1)
    assert set(shares[0][:5]) == {0, 1, 2, 3, 4}
    assert set(shares[1][:5]) == {10, 11, 12, 13, 14}


def test_large_alpha_is_even_and_small_alpha_is_not():
    labels = np.tile(np.arange(10), 1000)
    even = counts(by_dirichlet(labels, 4, 1e6, 0), labels)
    uneven = counts(by_dirichlet(labels, 4, 0.05, 0), labels)
    assert (np.abs(even - 250) <= 5).all()
    assert uneven.max() > 900


def test_another_seed_gives_another_partition_and_the_same_seed_the_same():
    labels = np.tile(np.arange(10), 20)
    for deal in (lambda seed: by_skew(labels, 4, 0.2, seed), lambda seed: by_dirichlet(labels, 4, 0.5, seed)):
        first, again, other = deal(1), deal(1), deal(2)
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_too_many_boards_is_refused():
    with pytest.raises(ConfigError, match=r"run\.nodes = 5 boards cannot share 3 training examples"):
        partition(np.array([0, 1, 2]), recipe(run={"nodes": 5}))


class HalvesPartitioner:
    """Behaves as partitioners of flwr-datasets do: a column to go by, a data set, parts by
    number."""

    def __init__(self, num_partitions: int, partition_by: str, keep: int = 100) -> None:
        self.n, self.by, self.keep = num_partitions, partition_by, keep

    def load_partition(self, k: int):
        labels = np.asarray(self.dataset[self.by])
        return self.dataset.select(np.flatnonzero(labels % self.n == k)[: self.keep])


def test_a_partitioner_of_flower_shares_out_by_its_own_rule(monkeypatch):
    flower = types.ModuleType("flwr_datasets")
    flower.partitioner = types.ModuleType("flwr_datasets.partitioner")
    flower.partitioner.HalvesPartitioner = HalvesPartitioner
    monkeypatch.setitem(sys.modules, "flwr_datasets", flower)
    keys = {"partition": "flwr", "partitioner": "HalvesPartitioner"}
    labels = np.array([3, 1, 2, 4, 0, 1])
    shares = partition(labels, recipe(run={"nodes": 2}, data=keys))
    assert [s.tolist() for s in shares] == [[2, 3, 4], [0, 1, 5]]
    fewer = partition(labels, recipe(run={"nodes": 2}, data=keys | {"partitioner_params": {"keep": 1}}))
    assert [s.tolist() for s in fewer] == [[2], [0]]
    with pytest.raises(ConfigError, match="did you mean HalvesPartitioner"):
        partition(labels, recipe(data=keys | {"partitioner": "HalfPartitioner"}))
    with pytest.raises(ConfigError, match="HalvesPartitioner failed: TypeError.* see data.partitioner_params"):
        partition(labels, recipe(data=keys | {"partitioner_params": {"kep": 1}}))


def test_partition_counts_of_digits_adds_up_without_torch():
    _, table = partition_counts(recipe(run={"nodes": 3}, data={"partition": "sorted"}))
    assert table.shape == (3, 10)
    assert table.dtype == np.int64
    assert table.sum() == 1442
    assert (table > 0).sum() <= 12  # ten classes, cut at two places
