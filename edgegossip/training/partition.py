"""Partitions a data set: which board gets which training examples.

Every rule uses each example exactly once, depends only on (labels, nodes, seed) and is computed
alike on every board.

    skew(s)        the degree of skew of Aketi, Kodge, Roy (2021), "Low precision decentralized
                   distributed training": of each class the first s share goes to a pool sorted by
                   class, the rest to a shuffled pool; node k of n takes the k-th contiguous n-th
                   part of both. s = 0 is `iid`, s = 1 is `sorted`.
    dirichlet(a)   each class is dealt out in proportions drawn from Dirichlet(a, ..., a) (Hsu, Qi,
                   Brown 2019).
    flwr           a partitioner of the optional package flwr-datasets, by its class's name

A node left with nothing is given one example of the fullest node. With `local` nothing is
partitioned: each board has data of its own and keeps all of it.
"""

from __future__ import annotations

import inspect

import numpy as np
from numpy.typing import NDArray

from edgegossip.recipe import Recipe
from edgegossip.training.data.base import DataSet
from edgegossip.training.names import unknown
from edgegossip.training.rng import Purpose, generator, permutation
from edgegossip.types import ConfigError, HostError

Partitions = list[NDArray[np.int64]]  # one array of example indices a node


def partition_data(data: DataSet, recipe: Recipe) -> Partitions:
    """Partition one data set that all of `recipe.run.nodes` boards have.

    Raises ConfigError where the rule needs classes and the data have none."""
    examples, rule = data.indexed(), recipe.data.partition
    if data.about.target == "class" and examples.targets is not None:
        return partition(examples.targets, recipe)
    if rule != "iid" and not (rule == "flwr" and _is_even(recipe.data.partitioner)):
        raise ConfigError(
            f"data.partition = {rule} goes by the class of each example, and {data.name} has no "
            "classes that are known beforehand: set data.partition = iid"
        )
    return partition(np.zeros(len(examples), np.int64), recipe)


def partition(labels: NDArray[np.integer], recipe: Recipe) -> Partitions:
    """Partition examples by their labels int[examples], for `recipe.run.nodes` boards by the rule
    `recipe.data.partition`.

    Raises ConfigError when there are fewer examples than boards."""
    nodes, seed, rule = recipe.run.nodes, recipe.run.seed, recipe.data.partition
    if len(labels) < nodes:
        raise ConfigError(
            f"run.nodes = {nodes} boards cannot share {len(labels)} training examples; take at most {len(labels)}"
        )
    if rule == "dirichlet":
        return by_dirichlet(labels, nodes, recipe.data.alpha, seed)
    if rule == "flwr":
        return _by_flower(labels, recipe)
    skew = {"iid": 0.0, "sorted": 1.0, "skew": recipe.data.skew}[rule]
    return by_skew(labels, nodes, skew, seed)


def by_skew(labels: NDArray[np.integer], nodes: int, skew: float, seed: int) -> Partitions:
    """Partition with a degree of skew in [0, 1]; sizes differ by two examples at most."""
    by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    cuts = [round(skew * len(members)) for members in by_class]
    empty = np.empty(0, np.int64)
    sorted_pool = np.concatenate([empty, *(m[:cut] for m, cut in zip(by_class, cuts, strict=True))])
    rest = np.concatenate([empty, *(m[cut:] for m, cut in zip(by_class, cuts, strict=True))])
    shuffled = rest[permutation(seed, Purpose.PARTITION, len(rest))]
    # The second pool's remainders go to the nodes in the opposite order, which keeps the shares
    # even.
    first, second = _edges(len(sorted_pool), nodes), len(shuffled) - _edges(len(shuffled), nodes)[::-1]
    shares = [
        np.concatenate([sorted_pool[first[k] : first[k + 1]], shuffled[second[k] : second[k + 1]]])
        for k in range(nodes)
    ]
    return _fill_empty(shares)


def by_dirichlet(labels: NDArray[np.integer], nodes: int, alpha: float, seed: int) -> Partitions:
    """Partition with class proportions that are Dirichlet(alpha); no node is empty."""
    draw = generator(seed, Purpose.DIRICHLET)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(nodes)]
    for number, c in enumerate(np.unique(labels)):
        members = np.flatnonzero(labels == c)
        members = members[permutation(seed, Purpose.PARTITION, len(members), number + 1)]
        proportions = draw.dirichlet(np.full(nodes, alpha))
        cuts = np.rint(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for node, part in enumerate(np.split(members, cuts)):
            parts[node].append(part)
    return _fill_empty([np.concatenate(p) for p in parts])


def _by_flower(labels: NDArray[np.integer], recipe: Recipe) -> Partitions:
    """Partitions of a partitioner of flwr-datasets (Flower's), which goes by the column "label"."""
    try:
        from datasets import Dataset
        from flwr_datasets import partitioner as partitioners
    except ImportError:
        raise HostError("data.partition = flwr needs the package flwr-datasets: pip install flwr-datasets") from None
    section, nodes = recipe.data, recipe.run.nodes
    known = {
        name: value
        for name, value in vars(partitioners).items()
        if isinstance(value, type) and name.endswith("Partitioner") and name != "Partitioner"
    }
    if section.partitioner not in known:
        raise unknown("data.partitioner", section.partitioner, known)
    kind = known[section.partitioner]
    takes = inspect.signature(kind).parameters
    given = {"num_partitions": nodes, "partition_by": "label", "seed": recipe.run.seed % 2**32}
    params = {k: v for k, v in given.items() if k in takes} | dict(section.partitioner_params)
    try:
        rule = kind(**params)
        rule.dataset = Dataset.from_dict({"label": labels.tolist(), "place": list(range(len(labels)))})
        shares = [np.asarray(rule.load_partition(k)["place"], np.int64) for k in range(nodes)]
    except Exception as error:
        raise ConfigError(
            f"data.partitioner = {section.partitioner} failed: {type(error).__name__}: {error}; see "
            "data.partitioner_params"
        ) from error
    return _fill_empty(shares)


def _is_even(partitioner: str) -> bool:
    """Whether a partitioner of flwr-datasets goes by the number of examples alone."""
    names = ("Iid", "Size", "Linear", "Square", "Exponential")
    return partitioner in [f"{name}Partitioner" for name in names]


def _fill_empty(shares: Partitions) -> Partitions:
    for node, share in enumerate(shares):
        if len(share) == 0:
            giver = int(np.argmax([len(s) for s in shares]))
            shares[node], shares[giver] = shares[giver][-1:], shares[giver][:-1]
    return shares


def _edges(size: int, nodes: int) -> NDArray[np.int64]:
    """int64[nodes + 1]: where `size` items are cut into `nodes` contiguous parts."""
    return np.arange(nodes + 1, dtype=np.int64) * size // nodes
