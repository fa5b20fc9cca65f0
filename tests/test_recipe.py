"""Recipes: what is accepted, what is refused and in which words, and that nothing is lost on the
way to TOML and back."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, fields
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgegossip import recipe
from edgegossip.recipe import Recipe
from edgegossip.types import ConfigError


def test_defaults_are_valid_by_their_own_limits() -> None:
    assert recipe.from_dict(asdict(Recipe())) == Recipe()


@given(
    rounds=st.integers(1, 10_000),
    lr=st.floats(0, 1000, allow_nan=False),
    milestones=st.lists(st.floats(0, 1, allow_nan=False), max_size=4),
    hidden=st.lists(st.integers(1, 999), min_size=1, max_size=3),
    name=st.text(max_size=30),
)
def test_toml_round_trip(rounds: int, lr: float, milestones: list[float], hidden: list[int], name: str) -> None:
    document = {
        "run": {"rounds": rounds, "name": name},
        "training": {"lr": lr, "milestones": milestones},
        "model": {"params": {"hidden": hidden}},
    }
    made = recipe.from_dict(document)
    assert recipe.from_dict(tomllib.loads(recipe.to_toml(made))) == made
    assert made.training.milestones == milestones and made.run.rounds == rounds


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.learning_rate=0.1", "unknown recipe key training.learning_rate; did you mean training.lr?"),
        ("trainng.lr=3", "unknown section [trainng] in the recipe; did you mean training?"),
        ("training.lr=-1", "training.lr = -1.0: out of range (from 0.0 to 1000.0); the nearest is 0.0"),
        ("training.lr=fast", 'training.lr = "fast": must be a number'),
        ("training.nesterov=1", "training.nesterov = 1: must be true or false"),
        ("run.nodes=1", "run.nodes = 1: out of range (from 2 to 64); the nearest is 2"),
        ("run.nodes=true", "run.nodes = true: must be a whole number"),
        ("run.mode=gosip", 'run.mode = "gosip": not one of gossip, server; did you mean gossip?'),
        ("training.milestones=[0.5, 2]", "training.milestones[1] = 2.0: out of range"),
        ("model.params=3", "model.params = 3: must be a table"),
        ("model.name.x=3", "model.name is a value, not a section"),
        ("run.rounds", "write it as section.key=value"),
    ],
)
def test_bad_settings_say_what_is_valid(setting: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe.load("quickstart-gossip", [setting])
    assert words in str(caught.value)


def test_settings_take_toml_values_and_bare_words() -> None:
    made = recipe.load(
        "quickstart-gossip", ["model.name=cnn", "model.params.hidden=[3, 4]", "run.nodes=8", 'run.name="x y"']
    )
    assert (made.model.name, made.model.params["hidden"], made.run.nodes, made.run.name) == ("cnn", [3, 4], 8, "x y")


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean quickstart-gossip"):
        recipe.load("quickstart-gosip")
    with pytest.raises(ConfigError, match="cannot read recipe nowhere.toml: No such file"):
        recipe.load("nowhere.toml")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_recipe_is_read_as_any_editor_saves_it(tmp_path, encoding: str, end: str) -> None:
    text = end.join(["[run]", 'name = "Gerät"', "nodes = 3", ""])
    (tmp_path / "r.toml").write_bytes(text.encode(encoding))
    loaded = recipe.load(str(tmp_path / "r.toml"))
    assert (loaded.run.name, loaded.run.nodes) == ("Gerät", 3)


def test_a_recipe_in_utf_16_without_a_mark_is_named(tmp_path) -> None:
    (tmp_path / "r.toml").write_bytes("[run]\nnodes = 3\n".encode("utf-16-le"))
    with pytest.raises(ConfigError, match=r"cannot read recipe .*r\.toml: line 1: a zero byte"):
        recipe.load(str(tmp_path / "r.toml"))


@pytest.mark.parametrize("text", ["run = " + "[" * 5000, "run = " + "{a = " * 5000, "run = " + "1" * 5000])
def test_what_a_reader_of_toml_cannot_bear_is_a_mistake_of_the_recipe(tmp_path, text: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ConfigError, match="is not valid TOML: (brackets in brackets|Exceeds the limit)"):
        recipe.load(str(tmp_path / "r.toml"))
    assert recipe.parse_value(text) == text


def test_broken_toml_names_the_line(tmp_path) -> None:
    (tmp_path / "r.toml").write_text("[run\n")
    with pytest.raises(ConfigError, match="is not valid TOML: .*line 1"):
        recipe.load(str(tmp_path / "r.toml"))
    (tmp_path / "r.toml").write_bytes("[run]\n# Gerät\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="line 2: not text in UTF-8; save it in UTF-8"):
        recipe.load(str(tmp_path / "r.toml"))
    (tmp_path / "r.toml").write_text("run = 3\n")
    with pytest.raises(ConfigError, match=r"\[run\] is a section"):
        recipe.load(str(tmp_path / "r.toml"))


GOSSIP_PAPERS = ("bagua", "choco", "deep-squeeze", "low-precision")


@pytest.mark.parametrize("name", recipe.names())
def test_packaged_recipes_load(name: str) -> None:
    made = recipe.load(name)
    assert made.run.name == name
    assert made.run.mode == ("gossip" if name.endswith(("gossip", "table3", "loco", *GOSSIP_PAPERS)) else "server")


def test_run_id_depends_on_the_run_and_not_on_the_board() -> None:
    for own in ({"data": {"dir": "/d"}}, {"run": {"threads": 4}}, {"network": {"port": 7700}}):
        assert recipe.run_id(recipe.from_dict(own)) == recipe.run_id(Recipe())
    assert recipe.run_id(Recipe()) == recipe.run_id(recipe.from_dict({}))
    assert recipe.run_id(Recipe()) != recipe.run_id(recipe.from_dict({"run": {"seed": 2}}))
    assert len(recipe.run_id(Recipe())) == 16


def test_settings_leave_the_tables_that_they_are_given_alone() -> None:
    table: dict[str, object] = {}
    recipe.with_settings(Recipe(), {"codec.name": "qsgd", "codec.params": table, "codec.params.bits": 2})
    assert table == {}


def test_last_round_is_always_evaluated() -> None:
    for rounds in (1, 7, 10, 101):
        made = recipe.from_dict({"run": {"rounds": rounds}})
        assert max(recipe.evaluation_rounds(made)) == rounds - 1
    made = recipe.from_dict({"run": {"rounds": 10}, "evaluation": {"every": 4}})
    assert recipe.evaluation_rounds(made) == {3, 7, 9}


def test_every_key_is_described() -> None:
    rows = recipe.describe_keys()
    count = sum(len(fields(kind)) for kind in get_type_hints(Recipe).values())
    assert len(rows) == count and all(key and help for key, _, help in rows)
    assert ("training.lr", "0.1", "learning rate (from 0.0 to 1000.0)") in rows


def test_boards_on_different_devices_are_of_one_run():
    base = recipe.load("quickstart-gossip")

    def id_with(**settings):
        return recipe.run_id(recipe.with_settings(base, {f"training.{k}": v for k, v in settings.items()}))

    assert id_with(device="cuda:1", deterministic=True, cuda_graph=True) == id_with(device="cpu") == recipe.run_id(base)
    assert len({recipe.run_id(base), id_with(optimizer="adam"), id_with(clip=1.0), id_with(precision="bf16")}) == 4


def test_keys_that_came_later_change_no_identity_while_at_their_defaults():
    canonical_toml = recipe.canonical_toml(recipe.load("quickstart-gossip"))
    assert not any(key in canonical_toml for key in ("optimizer", "task", "device", "clip", "keep"))
    assert "optimizer" in recipe.canonical_toml(recipe.load("quickstart-gossip", ["training.optimizer=adam"]))


# The keys that every version knows: what came after them is marked `later`.
FIRST = {
    "run": "name mode nodes rounds seed threads",
    "data": "name dir partition skew alpha augment train_examples test_examples",
    "model": "name norm params",
    "training": "batch_size local_steps lr momentum nesterov weight_decay schedule milestones "
    "step_factor precision dw memory",
    "codec": "name params",
    "gossip": "algorithm topology topology_file topology_params params momentum momentum_factor deadline_s",
    "server": "strategy strategy_params weighting fraction quorum downlink downlink_params min_nodes join_s deadline_s",
    "evaluation": "where every examples",
    "network": "host port tls grace_s restarts",
    "checkpoint": "every keep slack_s",
}


@pytest.mark.parametrize("name", recipe.names())
def test_other_boards_are_told_keys_that_every_version_knows(name: str) -> None:
    """And of later ones those alone that a recipe sets."""
    made = recipe.load(name)
    told = tomllib.loads(recipe.shared_toml(made))
    assert recipe.from_dict(told) == recipe.portable(made)
    defaults = asdict(Recipe())
    later = {(s, k) for s, keys in told.items() for k in keys if k not in FIRST.get(s, "").split()}
    assert all(told[s][k] != defaults[s][k] for s, k in later)
    assert set(told) - set(FIRST) <= {"outer"} and all(set(keys.split()) <= set(told[s]) for s, keys in FIRST.items())


def test_lists_of_texts_are_checked_one_by_one():
    made = recipe.load("quickstart-gossip", ['model.keep=["head.*", "*.bias"]'])
    assert made.model.keep == ["head.*", "*.bias"]
    for wrong, words in (("3", "must be a list of texts"), ('["a", 3]', r"model.keep\[1\] = 3: must be text")):
        with pytest.raises(ConfigError, match=words):
            recipe.load("quickstart-gossip", [f"model.keep={wrong}"])
