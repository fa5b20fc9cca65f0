"""The cases of a study. A case is the recipe with some keys set, for one seed.

`--sweep key=a,b,c` gives a cartesian product. A sweep file (TOML) lists cases, for a subset that
covers what is asked:

    seeds = [1, 2, 3]

    [set]                               # for every case; `--set` goes above it
    run.nodes = 8

    [[case]]
    name = "choco 99 %"                 # optional; of one case, or before what its sweep sets
    gossip.algorithm = "choco-sgd"
    codec = { name = "topk", params = { ratio = 0.01 } }
    seeds = [1]                         # optional
    sweep = { data.skew = [0.0, 0.9] }  # optional: a product inside this case
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from edgegossip.choices import did_you_mean
from edgegossip.files import parse_toml, read_text
from edgegossip.recipe import NetworkSection, Recipe, canonical_toml, parse_value, with_settings
from edgegossip.studies import attack, heat, link
from edgegossip.studies.attack import Attack
from edgegossip.studies.heat import HeatModel
from edgegossip.studies.link import LinkModel
from edgegossip.types import ConfigError

Settings = Mapping[str, Any]  # recipe key -> value

MOST_CASES = 100_000
_SAY_VALUE_ONLY = (
    "run.mode",
    "gossip.algorithm",
    "gossip.topology",
    "server.strategy",
    "codec.name",
    "model.name",
    "data.name",
    "attack.kind",
)
_AROUND = (attack.PREFIX, link.PREFIX, heat.PREFIX)  # of keys that are no recipe's
_CASE_KEYS = ("name", "seeds", "sweep")
_FILE_KEYS = ("seeds", "set", "case")


@dataclass(frozen=True, slots=True)
class StudyCase:
    """Describes one run of a study."""

    settings: Settings  # what this case sets, without the seed
    recipe: Recipe  # resolved, with the seed
    name: str  # for tables; the same for all seeds
    attack: Attack | None = None  # boards that lie
    link: LinkModel | None = None  # None: messages take a moment
    heat: HeatModel | None = None  # None: boards stay cool

    @property
    def seed(self) -> int:
        """Return the seed, which tells the runs of one row apart."""
        return self.recipe.run.seed

    @property
    def key(self) -> str:
        """Return 16 hex digits of all that decides the result; where the data lies, threads and
        addresses do not count."""
        return _digest(self.recipe, self.attack, self.link, self.heat)

    @property
    def group(self) -> str:
        """Return what is the same for the cases that differ in the seed only."""
        return _digest(replace(self.recipe, run=replace(self.recipe.run, seed=0)), self.attack, self.link, self.heat)


@dataclass(frozen=True, slots=True)
class Variant:
    """Says what one case of a file, or one point of a product, sets."""

    settings: Settings = field(default_factory=dict)
    name: str = ""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Holds settings for every case, the cases, and the seeds of those that name none."""

    common: Settings = field(default_factory=dict)
    variants: tuple[Variant, ...] = (Variant(),)
    seeds: tuple[int, ...] = ()

    def below(self, settings: Settings) -> StudyPlan:
        """Return the plan with these in place of what every case had; a case's own stay above."""
        return replace(self, common={**self.common, **settings})


def of_recipe(settings: Iterable[str]) -> list[str]:
    """Return those of the settings "key=value" that are a recipe's, and not a study's own."""
    return [setting for setting in settings if not setting.startswith(_AROUND)]


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Read `key=a,b,c` as (key, values); a value is TOML or a bare word, and commas inside
    brackets or quotes do not part. Raises ConfigError."""
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or "." not in key:
        raise ConfigError(f"--sweep {text}: write it as section.key=a,b,c, such as --sweep gossip.algorithm=dpsgd,sgp")
    parts = [part.strip() for part in _split(values)]
    if not all(parts):
        raise ConfigError(f"--sweep {text}: a value between the commas is missing")
    if key == "run.seed":
        raise ConfigError(
            "--sweep run.seed=...: seeds are not swept; say --seeds 1,2,3, and results are averaged over them"
        )
    return key, [parse_value(part) for part in parts]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read `1,2,3`, in that order, each once. Raises ConfigError."""
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"--seeds {text}: write whole numbers with commas between them, such as 1,2,3") from None
    if min(seeds) < 0:
        raise ConfigError(f"--seeds {text}: a seed is at least 0")
    return seeds


def product(sweeps: Iterable[tuple[str, Sequence[Any]]]) -> list[Settings]:
    """Return all combinations; the last key changes fastest. Raises ConfigError when a key comes
    twice."""
    sweeps = list(sweeps)
    keys = [key for key, _ in sweeps]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{key} is swept twice; list all of its values once, as --sweep {key}=a,b,c")
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(values for _, values in sweeps))]


def files() -> list[str]:
    """Return the names of the sweep files that the package carries."""
    return sorted(f.name.removesuffix(".toml") for f in _packaged().iterdir() if f.name.endswith(".toml"))


def read_file(source: str) -> StudyPlan:
    """Read a sweep file by path, or by name if the package carries it. Raises ConfigError."""
    path = Path(source)
    if source in files():
        text = str((_packaged() / f"{source}.toml").read_text(encoding="utf-8"))
    elif path.suffix != ".toml" and not path.exists():
        raise ConfigError(
            f"no sweep file named {source}{did_you_mean(source, files())} (the package's: {', '.join(files())}; or a path)"
        )
    else:
        try:
            text = read_text(path)
        except ValueError as error:
            raise ConfigError(f"cannot read the sweep file {path}: {error}") from None
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    return plan_of(document, source)


def plan_of(document: Mapping[str, Any], source: str) -> StudyPlan:
    """Check a parsed sweep file; `source` names it in errors. Raises ConfigError."""
    for key in document:
        if key not in _FILE_KEYS:
            raise ConfigError(
                f"unknown key {key} in {source}{did_you_mean(key, _FILE_KEYS)} (there are: {', '.join(_FILE_KEYS)})"
            )
    cases = document.get("case", [{}])
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise ConfigError(f"{source}: cases are written as [[case]] sections")
    variants = [v for number, case in enumerate(cases, 1) for v in _variants(case, f"{source}, case {number}")]
    common = _table(document.get("set", {}), f"{source}: [set]")
    return StudyPlan(common, tuple(variants), _seeds(document.get("seeds", []), source))


def make_cases(
    base: Recipe, plan: StudyPlan, sweeps: Iterable[Settings] = ({},), seeds: Sequence[int] = ()
) -> list[StudyCase]:
    """Make every variant with every point of `sweeps` on top, for every seed.

    Seeds are those given, else the variant's, the plan's, the recipe's. All cases of the first
    seed come first; of cases that come to the same recipe only the first is kept. Raises
    ConfigError that names the case."""
    found: dict[str, StudyCase] = {}
    ranked: list[tuple[int, StudyCase]] = []
    for variant, point in itertools.product(plan.variants, sweeps):
        settings = {**variant.settings, **point}
        name = _name(variant, point)
        for rank, seed in enumerate(seeds or variant.seeds or plan.seeds or (base.run.seed,)):
            try:
                chosen = {**plan.common, **settings, "run.seed": seed}
                recipe = with_settings(base, {k: v for k, v in chosen.items() if not k.startswith(_AROUND)})
                of_attack, of_link, of_heat = (
                    {k.removeprefix(p): v for k, v in chosen.items() if k.startswith(p)} for p in _AROUND
                )
                liars, links = Attack.of(of_attack, recipe), LinkModel.of(of_link)
                hot = HeatModel.of(of_heat, recipe)
            except ConfigError as error:
                raise ConfigError(f"{error} (case {name})" if settings else str(error)) from None
            ranked.append((rank, StudyCase(settings, recipe, name, liars, links, hot)))
    for _, case in sorted(ranked, key=lambda pair: pair[0]):
        found.setdefault(case.key, case)
    if len(found) > MOST_CASES:
        raise ConfigError(f"the sweep has {len(found)} cases; a study takes at most {MOST_CASES}")
    return list(found.values())


def say(settings: Settings) -> str:
    """Put settings in a few words, such as "choco-sgd, topk, ratio=0.01, skew=0.9"."""
    return ", ".join(_words(key, value) for key, value in settings.items())


def _words(key: str, value: Any) -> str:
    return str(value) if key in _SAY_VALUE_ONLY else f"{key.rpartition('.')[2]}={value}"


def _name(variant: Variant, point: Settings) -> str:
    if not variant.name:
        return say({**variant.settings, **point}) or "the recipe as it is"
    return ", ".join(part for part in (variant.name, say(point)) if part)


def _digest(recipe: Recipe, *around: object) -> str:
    shared = replace(
        recipe,
        run=replace(recipe.run, threads=1, name="study"),
        data=replace(recipe.data, dir=""),
        network=NetworkSection(),
    )
    said = canonical_toml(shared) + "".join(repr(what) for what in around if what)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _packaged() -> Any:
    return resources.files("edgegossip") / "recipes" / "studies"


def _variants(case: Mapping[str, Any], where: str) -> Iterator[Variant]:
    settings = dict(_flat({key: value for key, value in case.items() if key not in _CASE_KEYS}))
    name, sweep = case.get("name", ""), dict(_flat(_table(case.get("sweep", {}), f"{where}: sweep")))
    if not isinstance(name, str):
        raise ConfigError(f"{where}: name = {name!r} must be text")
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: sweep.{key} = {values!r} must be a list of values")
    seeds = _seeds(case.get("seeds", []), where)
    for point in product(sweep.items()):
        yield Variant({**settings, **point}, _name(Variant(name=name), point) if name else "", seeds)


def _table(value: Any, what: str) -> Settings:
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be a table of recipe keys")
    return dict(_flat(value))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(a.b, value) for every leaf; an empty table is a leaf too. Keys may be written nested or
    dotted in quotes."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(seed) is int and seed >= 0 for seed in value):
        raise ConfigError(f"{where}: seeds = {value!r} must be a list of whole numbers, such as [1, 2, 3]")
    return tuple(dict.fromkeys(value))


def _split(text: str) -> list[str]:
    """Text at its commas, but not at those inside brackets, braces or quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
