"""Sweeps and sweep files: which cases come out, in which order, and what is said of mistakes."""

from dataclasses import replace

import pytest

from edgegossip.recipe import Recipe, load
from edgegossip.studies.cases import StudyPlan, files, make_cases, parse_seeds, parse_sweep, product, read_file
from edgegossip.types import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("codec.name=fp32, minmax8", ("codec.name", ["fp32", "minmax8"])),
        ("data.skew=0,0.9", ("data.skew", [0, 0.9])),
        ("training.nesterov=true,false", ("training.nesterov", [True, False])),
        ("model.params.hidden=[8],[8, 4]", ("model.params.hidden", [[8], [8, 4]])),
        ('codec.params={ratio = 0.1, values = "fp16"},{}', ("codec.params", [{"ratio": 0.1, "values": "fp16"}, {}])),
        ('data.name="a,b"', ("data.name", ["a,b"])),
    ],
)
def test_a_sweep_is_read_as_toml_values(text, expected):
    assert parse_sweep(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("codec.name", "section.key=a,b,c"),
        ("codec=fp32", "section.key=a,b,c"),
        ("codec.name=fp32,,minmax8", "a value between the commas is missing"),
        ("codec.name=", "a value between the commas is missing"),
        ("run.seed=1,2", "--seeds 1,2,3"),
    ],
)
def test_a_malformed_sweep_is_one_sentence(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_sweep(text)


def test_seeds_are_whole_numbers():
    assert parse_seeds("3,1,3") == (3, 1)
    for text in ("", "1,x", "1.5", "-1"):
        with pytest.raises(ConfigError, match="seed"):
            parse_seeds(text)


def test_a_key_cannot_be_swept_twice():
    with pytest.raises(ConfigError, match="swept twice"):
        product([("codec.name", ["fp32"]), ("codec.name", ["bf16"])])


def test_a_product_has_every_combination_and_the_first_seed_comes_first():
    points = product([("codec.name", ["fp32", "bf16"]), ("data.skew", [0.0, 0.9])])
    cases = make_cases(Recipe(), StudyPlan(), points, (4, 5))
    assert [case.seed for case in cases] == [4] * 4 + [5] * 4
    assert [case.name for case in cases[:4]] == ["fp32, skew=0.0", "fp32, skew=0.9", "bf16, skew=0.0", "bf16, skew=0.9"]
    assert cases[1].recipe.data.skew == 0.9 and cases[1].recipe.codec.name == "fp32"
    assert len({case.key for case in cases}) == 8 and len({case.group for case in cases}) == 4


def test_a_study_without_sweeps_is_the_recipe_itself():
    (case,) = make_cases(Recipe(), StudyPlan())
    assert case.recipe == Recipe() and case.name == "the recipe as it is"


def test_a_wrong_key_names_the_nearest_and_the_case():
    with pytest.raises(
        ConfigError, match=r"unknown recipe key gossip\.algoritm; did you mean gossip\.algorithm\?.*case"
    ):
        make_cases(Recipe(), StudyPlan(), [{"gossip.algoritm": "dpsgd"}])


def test_what_only_one_machine_cares_for_does_not_change_a_cases_key():
    (plain,) = make_cases(Recipe(), StudyPlan())
    for setting in ({"data.dir": "/x"}, {"run.threads": 3}, {"run.name": "y"}, {"network.port": 9}):
        assert make_cases(Recipe(), StudyPlan(setting))[0].key == plain.key
    for setting in ({"data.skew": 0.5}, {"training.lr": 0.2}, {"run.seed": 7}, {"evaluation.every": 2}):
        assert make_cases(Recipe(), StudyPlan(), [setting])[0].settings == setting
    assert make_cases(Recipe(), StudyPlan(), [{"training.lr": 0.2}])[0].key != plain.key


FILE = """
seeds = [1, 2]

[set]
run.nodes = 8

[[case]]
name = "sparse"
gossip.algorithm = "dpsgd"
codec = { name = "topk", params = { ratio = 0.01 } }
sweep = { data.skew = [0.0, 0.9], "gossip.topology" = ["ring", "torus"] }

[[case]]
"codec.name" = "minmax8"
seeds = [3]

[[case]]
codec.name = "minmax8"
seeds = [3, 4]
"""


def test_a_file_lists_cases(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(FILE)
    cases = make_cases(Recipe(), read_file(str(path)))
    assert all(case.recipe.run.nodes == 8 for case in cases)
    assert [case.name for case in cases[:2]] == ["sparse, skew=0.0, ring", "sparse, skew=0.0, torus"]
    assert cases[0].recipe.codec.params == {"ratio": 0.01}
    assert len(cases) == 4 * 2 + 2  # the twin of a case is left out
    assert sorted(case.seed for case in cases if case.name == "minmax8") == [3, 4]
    swept = make_cases(Recipe(), read_file(str(path)), product([("run.rounds", [5, 6])]), (9,))
    assert len(swept) == 5 * 2 and {case.seed for case in swept} == {9}
    assert swept[1].name == "sparse, skew=0.0, ring, rounds=6"


def test_what_is_asked_for_goes_above_a_files_common_settings_and_below_a_cases_own(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(FILE)
    cases = make_cases(Recipe(), read_file(str(path)).below({"run.nodes": 4, "codec.name": "bf16"}))
    assert {case.recipe.run.nodes for case in cases} == {4}
    assert {case.recipe.codec.name for case in cases} == {"topk", "minmax8"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sed = [1]", "unknown key sed .*did you mean seeds"),
        ("seeds = [1.5]", "must be a list of whole numbers"),
        ("set = 3", "must be a table of recipe keys"),
        ("case = 3", r"cases are written as \[\[case\]\]"),
        ("[[case]]\nsweep = { data.skew = 0.5 }", "must be a list of values"),
        ("[[case]]\nname = 3", "must be text"),
        ("[[case", "is not valid TOML"),
        ("seeds = " + "[" * 5000, "is not valid TOML: brackets in brackets"),
    ],
)
def test_a_malformed_file_is_one_sentence(tmp_path, text, words):
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_file(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the sweep file"):
        read_file(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no sweep file named"):
        read_file("fashion-gosip")


def test_the_packaged_file_is_at_most_sixty_runs_with_a_name_each():
    assert "fashion-gossip" in files()
    cases = make_cases(Recipe(), read_file("fashion-gossip"))
    assert len(cases) <= 60
    assert len({case.name for case in cases}) == len({case.group for case in cases})
    assert {case.recipe.data.skew for case in cases} == {0.0, 0.8, 0.9}
    assert all(case.recipe.training.batch_size * case.recipe.run.nodes == 256 for case in cases)


@pytest.mark.parametrize("name", ["co3", "elasticl"])
def test_the_papers_sweeps_come_to_the_cases_that_they_list(name):
    cases = make_cases(load(name), read_file(name))
    shown = {case.name: dict(case.recipe.codec.params) for case in cases}
    assert len({(case.name, case.recipe.run.seed) for case in cases}) == len(cases)
    if name == "elasticl":
        assert [p["bits"] for n, p in shown.items() if "fixed" in n] == [4, 16, 4]  # the last: sorted labels
        assert [p["s0"] for n, p in shown.items() if "fixed" not in n] == [1, 2, 4, 4]
    else:
        assert [p.get("gamma") for p in shown.values()] == [None, 0.9, 0.0, 1.0, 0.9, None, 0.9]
        assert {case.recipe.run.seed for case in cases if case.name in ("cnn, fp32", "cnn, co3, gamma=0.9")} == {
            1,
            2,
            3,
        }


@pytest.mark.parametrize(
    ("name", "recipe", "epochs", "seeds"),
    [("int8", "cifar10-gossip", 8, {1}), ("int8-fashion", "fashion-gossip", 5, {1, 2, 3})],
)
def test_the_sweeps_of_int8_are_pairs_that_differ_in_precision_alone(name, recipe, epochs, seeds):
    cases = make_cases(load(recipe), read_file(name))
    images = {"cifar10": 50_000, "fashion-mnist": 60_000}
    assert {case.recipe.run.seed for case in cases} == seeds
    for case in cases:
        shown = case.recipe
        assert shown.run.rounds * shown.run.nodes * shown.training.batch_size >= epochs * images[shown.data.name]
    plain = [replace(c.recipe, training=replace(c.recipe.training, precision="fp32", dw=16)) for c in cases]
    assert all(plain.count(recipe) == 3 for recipe in plain)  # a seed's three are one recipe
    kinds = {(c.recipe.training.precision, c.recipe.training.dw) for c in cases}
    assert kinds == {("fp32", 16), ("int8", 16), ("int8", 8)}


def test_the_sweep_of_norms_has_each_of_them_in_fp32():
    cases = make_cases(load("cifar10-gossip"), read_file("norms"))
    of_fp32 = {c.recipe.model.norm for c in cases if c.recipe.training.precision == "fp32"}
    assert of_fp32 == {"batchnorm", "groupnorm", "evonorm-s0", "range-evonorm"}
    assert all(c.recipe.data.skew == 0.8 and c.recipe.run.nodes == 8 for c in cases)
