"""A user's own model and data: the example in the repository, and what is said when they are
wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edgegossip import recipe as recipes
from edgegossip import training
from edgegossip.types import ConfigError, DataError, UsageError
from tests.training.fakes import recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory in which `write(source)` makes a fresh module; gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    count = iter(range(100))

    def write(source):
        name = f"{tmp_path.name.replace('-', '_')}_{next(count)}"
        (tmp_path / f"{name}.py").write_text("import numpy as np\nfrom torch import nn\n" + source)
        return name

    return write


def test_the_example_learns(monkeypatch):
    monkeypatch.chdir(EXAMPLE)
    chosen = recipes.load(str(EXAMPLE / "recipe.toml"))
    training.check(chosen)
    assert training.partition_counts(chosen)[1].sum() == 1000
    boards = [training.build_workload(chosen, k) for k in range(4)]
    assert training.layout_of(chosen) == boards[0].layout
    x = boards[0].initial(1)
    before = boards[0].evaluate(x).accuracy
    for t in range(chosen.run.rounds):
        x = x + sum(b.local_update(x, t).delta for b in boards) / np.float32(4)
    assert before < 0.6
    assert boards[0].evaluate(x).accuracy > 0.9


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_dropout_is_repeatable(monkeypatch, device):
    monkeypatch.chdir(EXAMPLE)
    chosen = recipes.load(str(EXAMPLE / "recipe.toml"), [f"training.device={device}"])
    updates = []
    for noise in range(2):
        workload = training.build_workload(chosen, 0)
        torch.manual_seed(noise)
        updates.append(workload.local_update(workload.initial(1), 0).delta)
    if device == "cpu":
        assert (updates[0] == updates[1]).all()
    else:  # its kernels add up in any order; other masks would change every value by more than half
        np.testing.assert_allclose(updates[0], updates[1], atol=1e-5)


def test_images_of_ones_own_are_normalised(here):
    module = here(
        "def data(folder):\n"
        "    x = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)\n"
        "    x[:, 2] = 9\n"
        "    return x, np.arange(40) % 5, x, np.arange(40) % 5\n"
    )
    chosen = recipe(data={"name": f"{module}:data", "augment": True}, model={"name": "cnn"})
    workload = training.build_workload(chosen, 0)
    assert workload.layout.tensors[-1].shape == (5,)
    assert np.isfinite(workload.local_update(workload.initial(1), 0).delta).all()


def test_the_folder_is_handed_over(here):
    module = here("def data(folder):\n    raise FileNotFoundError(f'no samples in {folder}')\n")
    with pytest.raises(UsageError, match=rf"{module}:data failed: FileNotFoundError: no samples in /some/where"):
        training.build_workload(recipe(data={"name": f"{module}:data", "dir": "/some/where"}), 0)


ARRAYS = "x, y = np.zeros((8, 4), np.float32), np.arange(8) % 2\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return x, y, x", "must return four numpy arrays.*found a tuple of 3"),
        ("return None", "must return four numpy arrays.*found NoneType"),
        ("return {'train': x}", "must return four numpy arrays.*found dict"),
        ("return (n for n in x)", "must return four numpy arrays.*found generator"),
        ("return x, y[:7], x, y", r"a target for each of 8 inputs, found int64\[7\]"),
        ("return x, y + 0.5, x, y", r"training targets are float64\[\], test targets int64\[\]"),
        ("return x, y - 1, x, y", "expected labels from 0, found -1"),
        ("return x.astype(float), y, x, y", r"training inputs are float64\[4\], test inputs float32\[4\]"),
        ("return x.astype(complex), y", r"inputs are complex128; expected real numbers"),
        ("return x.astype(str), y", r"inputs are <U32; expected real numbers"),
        ("return x, y.astype(str)", r"targets are <U21; expected whole or real numbers"),
        ("return x[:, 0], y", r"expected inputs \[n, \.\.\.\], found float32\[8\]; reshape them to \[n, 1\]"),
        ("return x, y, x[:, :3], y", r"test inputs float32\[3\]; expected the same"),
        ("return x, y, x + np.nan, y", r"test part: inputs\[0\] holds a NaN"),
        ("return x[:0], y[:0], x, y", "at least one"),
    ],
)
def test_unfit_arrays(here, body, message):
    module = here(f"def data(folder):\n    {ARRAYS}    {body}\n")
    with pytest.raises(DataError, match=message):
        training.build_workload(recipe(data={"name": f"{module}:data"}), 0)


def test_augmentation_needs_images(here):
    module = here(f"def data(folder):\n    {ARRAYS}    return x, y, x, y\n")
    with pytest.raises(ConfigError, match=r"data\.augment = true needs images"):
        training.build_workload(recipe(data={"name": f"{module}:data", "augment": True}), 0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no such width')", "build failed: ValueError: no such width"),
        ("return 3", r"build must return a torch\.nn\.Module, not int"),
        ("return nn.Flatten()", "no parameter that requires a gradient"),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))", "build failed: RuntimeError"),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))", r"shape \(32, 9\); expected \(32, 10\)"),
    ],
)
def test_models_that_do_not_work(here, body, message):
    module = here(f"def build(input_shape, classes, norm, **params):\n    {body}\n")

    def use():
        workload = training.build_workload(recipe(model={"name": f"{module}:build"}), 0)
        workload.local_update(workload.initial(1), 0)

    with pytest.raises(UsageError, match=message):
        use()


def test_params_the_function_does_not_take(here):
    module = here("def build(input_shape, classes, norm):\n    return nn.Linear(1, 1)\n")
    with pytest.raises(UsageError, match=r"build failed: TypeError: .*depth"):
        training.build_workload(recipe(model={"name": f"{module}:build", "params": {"depth": 3}}), 0)


def test_names_that_lead_nowhere(here):
    module = here("def build(): ...\n")
    broken = here("import nothing_of_this_name\n")
    for name, error, message in [
        (f"{module}:biuld", ConfigError, f"did you mean {module}:build"),
        ("no_such_module:build", ConfigError, "no module 'no_such_module' in "),
        (f"{module}:", ConfigError, "must read module:function"),
        (f"{broken}:build", UsageError, f"importing {broken} failed: No module named 'nothing_of_this_name'"),
    ]:
        with pytest.raises(error, match=message):
            training.check(recipe(model={"name": name}))
        with pytest.raises(error, match=message):
            training.check(recipe(data={"name": name}))


def test_a_module_that_fails_on_import(here):
    module = here("1 / 0\n")
    with pytest.raises(UsageError, match=rf"{module}:build: importing {module} failed: ZeroDivisionError"):
        training.check(recipe(model={"name": f"{module}:build"}))
