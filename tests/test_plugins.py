"""Another package's codec, topology and algorithm, found by its metadata: examples/plugin works
wherever one's own does, and what cannot be used is refused in a sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgegossip import codecs, gossip, plugins, recipe
from edgegossip.agreement import Agreement, difference
from edgegossip.checkpoint.format import from_bytes, to_bytes
from edgegossip.gossip import topologies
from edgegossip.gossip.order import with_order
from edgegossip.layout import Layout, TensorSpec
from edgegossip.training.base import plugin_facts
from edgegossip.types import ConfigError, DataError, DecodeError, UsageError

EXAMPLE = Path(__file__).parents[1] / "examples/plugin"
LAYOUT = Layout.of([TensorSpec("weight", (5, 8), True), TensorSpec("bias", (8,), True)])
MINE = ("codec.name=log8", "gossip.topology=wheel", "gossip.algorithm=calm-sgd")

Install = Callable[..., Path]


def installed(folder: Path, name: str, version: str, points: dict[str, dict[str, str]], module: str = "") -> Path:
    """What pip leaves of a package: its metadata, and a module of that name."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [line for group, of in points.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in of.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    if module:
        (folder / f"{name}.py").write_text(module)
    return folder


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/plugin as pip installs it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE / "edgegossip_example", folder / "edgegossip_example")
    return installed(folder, "edgegossip_example", project["version"], project["entry-points"])


@pytest.fixture
def here(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(example)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def one(name: str, points: dict[str, dict[str, str]], module: str = "") -> Path:
        folder = installed(tmp_path / name, name, "2.0", points, module)
        monkeypatch.syspath_prepend(folder)
        return folder

    return one


def edgegossip(site: Path, *words: str) -> str:
    """What the command says in a process of its own, beside the plug-in."""
    run = [sys.executable, "-m", *words]
    paths = {"PYTHONPATH": f"{site}:{EXAMPLE.parents[1]}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(run, env=paths, cwd=site, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # what each of them does for it is below
def test_boards_train_with_it(example: Path) -> None:
    """Two boards, each in a process of its own: so their messages name it, and they agree on it."""
    sets = [word for setting in (*MINE, "run.nodes=2", "run.rounds=2") for word in ("--set", setting)]
    said = edgegossip(
        example, "edgegossip", "run", "quickstart-gossip", *sets, "--json", "--runs", str(example / "runs")
    )
    summary = json.loads(said)
    assert [row["state"] for row in summary["boards"]] == ["finished"] * 2


def test_the_simulator_plays_it_with_faults(example: Path) -> None:
    words = ["--algorithm", "calm-sgd", "--codec", "log8", "--topology", "wheel", "--boards", "5", "--rounds", "4"]
    assert "0 violations" in edgegossip(example, "lab.sim", "--seed", "1", "--campaign", "3", "--jobs", "1", *words)


def test_its_codec_keeps_its_claims(example: Path) -> None:
    report = json.loads(edgegossip(example, "edgegossip", "codec", "verify", "log8", "--json"))["codecs"][0]
    assert report["passed"] and {check["name"] for check in report["checks"] if check["passed"]} >= {
        "variance",
        "refuses",
    }


@pytest.mark.usefixtures("here")
def test_a_receiver_finds_the_codec_by_what_the_frame_says() -> None:
    x = np.random.default_rng(0).normal(size=LAYOUT.size).astype(np.float32)
    codec = codecs.get("log8")
    body, _ = codec.encode(x, codec.init(LAYOUT), codecs.Ctx(1, 0))
    found = codecs.from_wire(codec.wire_id, codec.wire_params())
    np.testing.assert_allclose(found.decode(body, LAYOUT), x, rtol=0.05)
    inner = codecs.get("error-feedback", codec="log8")
    assert inner.init(LAYOUT) is not None and "log8" in codecs.names()
    with pytest.raises(DecodeError, match="unknown codec id"):
        codecs.from_wire(plugins.wire_id("log8", "2"), b"")


@pytest.mark.usefixtures("here")
def test_what_an_algorithm_bears_is_asked_of_it() -> None:
    with pytest.raises(ConfigError, match="not for calm-sgd: boards would go apart before they go half of the way"):
        with_order(gossip.get("calm-sgd"), "adapt-with-combine")
    with pytest.raises(ConfigError, match="calm-sgd.* 'etta'.* eta"):
        gossip.get("calm-sgd", etta=0.1)
    assert topologies.get("wheel", 6).spectral_gap() > topologies.get("ring", 6).spectral_gap()


@pytest.mark.usefixtures("here")
def test_boards_with_another_version_do_not_train_together() -> None:
    theirs = plugin_facts(recipe.load("quickstart-gossip", MINE))
    assert theirs == {
        "plugins": ", ".join(f"{name} of edgegossip_example 1.0.0" for name in ("calm-sgd", "log8", "wheel"))
    }
    mine = {"plugins": theirs["plugins"].replace("1.0.0", "1.1.0")}
    said = difference(Agreement(mine), Agreement(theirs), there="on pi-02")
    assert (
        "1.1.0 here" in said and "1.0.0 on pi-02" in said and said.endswith("install the same versions on every board")
    )
    assert plugin_facts(recipe.load("quickstart-gossip", ["codec.name=co3"])) == {}


STATEFUL = """
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Kept:
    sum: np.ndarray
    count: int = 0
"""


def test_its_state_is_kept_in_a_checkpoint(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("kept_example", {"edgegossip.codecs": {"kept": "kept_example:FAMILY"}}, STATEFUL)
    from kept_example import Kept  # type: ignore[import-not-found]

    state = Kept(np.arange(3, dtype=np.float32), 7)
    back = from_bytes(to_bytes(state))
    np.testing.assert_array_equal(back.sum, state.sum)
    assert (type(back), back.count) == (Kept, 7)
    with pytest.raises(UsageError, match="count is a str"):
        to_bytes(replace(state, count="1"))
    data = to_bytes(state)
    monkeypatch.delattr("kept_example.Kept")
    with pytest.raises(DataError, match="Kept that cannot be: .*has no attribute 'Kept'"):
        from_bytes(data)


@pytest.mark.parametrize(
    ("name", "module", "words"),
    [
        ("unloadable", "import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        ("seven", "MINE = 7", "that is no codecs.Family of this name"),
        (
            "low_number",
            "from edgegossip.codecs import Family\nMINE = Family('mine', object, '', wire_id=3)",
            r"the wire id of codec mine is 3; make it with plugins.wire_id\('mine'\)",
        ),
    ],
)
def test_one_that_cannot_be_used_is_named_with_its_package(
    install: Install, name: str, module: str, words: str
) -> None:
    install(name, {"edgegossip.codecs": {"mine": f"{name}:MINE"}}, module)
    with pytest.raises(ConfigError, match=f"{name} 2.0.*{words}"):
        codecs.get("mine")
    with pytest.raises(DecodeError, match="unknown codec id 40000"):
        codecs.from_wire(40_000, b"")


def test_two_packages_with_one_name_are_named_and_what_is_built_in_goes_first(install: Install) -> None:
    for name in ("one_example", "other_example"):
        install(name, {"edgegossip.codecs": {"mine": f"{name}:MINE", "co3": f"{name}:MINE"}}, "MINE = None")
    with pytest.raises(ConfigError, match="one_example 2.0 and other_example 2.0 both add 'mine' to codecs"):
        codecs.get("mine")
    assert codecs.get("co3").wire_id < 0x8000


@pytest.mark.slow
def test_it_is_installed_into_an_empty_environment_and_its_own_tests_pass(tmp_path: Path) -> None:
    """Packages that it needs are those of this environment: no index is asked."""
    venv.create(tmp_path / "venv", with_pip=True)
    python, source = str(tmp_path / "venv/bin/python"), tmp_path / "plugin"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    below = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in below]  # with what is editable there
    (site / "below.pth").write_text("\n".join(lines) + "\n")
    shutil.copytree(EXAMPLE, source)
    shutil.rmtree(site / "setuptools", ignore_errors=True)  # Python 3.11's own, too old to make a wheel
    for words in (["pip", "install", "--quiet", "--no-deps", "--no-build-isolation"], ["pytest", "-q"]):
        subprocess.run([python, "-m", *words, str(source)], check=True, cwd=source)
