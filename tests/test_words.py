"""Names are those of the field: words of our own that once stood for them do not come back. Pages
are read without scrolling sideways."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Former word -> what the field calls it. Nobody needs these words here in any other sense.
NOWHERE = {
    "door": "TLS front end",
    "visitor": "pending handshake",
    "knock": "admission handshake",
    "doorkeeper": "admission controller",
    "turnstile": "rate limiter",
    "teller": "rate-limited log, or disseminator",
    "nursery": "fork server",
    "desk": "job server",
    "conductor": "time-dilation scheduler",
    "kept lines": "resumable results",
    "seam": "interface",
    "LocalError": "UsageError",
}
# Usual words in a sentence; as names of classes, functions and parameters they said too little.
AS_NAMES = {
    "Asked": "options",
    "Crowd": "connection limiter",
    "Division": "block layout",
    "Early": "pending frames",
    "Errand": "indirect probe",
    "Far": "remote members",
    "Favour": "shared probe",
    "Healed": "partition healed",
    "Here": "round context",
    "Later": "lazy mapping",
    "Objected": "refuted",
    "Said": "a message with a name of its own",
    "Seen": "a message with a name of its own",
    "Standing": "peer status",
    "Through": "strategy adapter",
    "Told": "a message with a name of its own",
    "Way": "conv config",
    "doorkeeper": "admission controller",
    "doubt": "suspect",
    "express": "message batching",
    "expel": "evict",
    "gate": "admission middleware",
    "greet": "mark alive",
    "kit": "provisioning bundle",
    "life": "incarnation",
    "pace": "emulated device",
    "ticket": "one-time token",
    "welcome": "on peer up",
}
# Where a former word has to stay, and why.
KEPT = {
    ("edgegossip/cli/fleet.py", "kit"),  # the command `fleet kit`
    ("edgegossip/security/front_end.py", "knock"),  # a name in the handshake's bytes
    ("edgegossip/security/tls.py", "knock"),
    ("edgegossip/__init__.py", "LocalError"),  # scripts of 0.1 may catch it
}
FOLDERS = ("edgegossip", "lab", "tests", "docs", "examples", "scripts", "proto")
SUFFIXES = (".py", ".pyi", ".cpp", ".hpp", ".inc", ".proto", ".md", ".toml")


@functools.cache
def files() -> dict[Path, str]:
    """Every file that is no history, and its text."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in [*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
        if path.suffix in SUFFIXES and path.name != "CHANGELOG.md" and path != Path(__file__)
        if ROOT / "lab" / "results" / "pages" not in path.parents
    }


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that an editor could break: no code, table or heading, no lone link."""
    is_code = False
    for number, line in enumerate(page.splitlines(), 1):
        is_code ^= line.startswith("```")
        if not is_code and not line.startswith(("    ", "!")) and line.lstrip()[:1] not in ("|", "#") and " " in line:
            yield number, line


def former(text: str) -> Iterator[str]:
    small = text.lower()
    for word in NOWHERE:
        if word.lower() in small and re.search(
            rf"(?<![a-zA-Z]){word}(s|ed|ing)?(?![a-zA-Z])", text, 0 if word == "LocalError" else re.IGNORECASE
        ):
            yield word


def test_former_words_are_gone() -> None:
    found = []
    for path, text in files().items():
        place = str(path.relative_to(ROOT))
        if not any((place, word) not in KEPT for word in former(text)):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found += [
                f"{place}:{number}: {word}: say {NOWHERE[word]}" for word in former(line) if (place, word) not in KEPT
            ]
    assert not found, "\n".join(found)


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_names_say_what_the_field_says() -> None:
    found = []
    defined = re.compile(rf"\b_*({'|'.join(AS_NAMES)})_*\b")
    for path, text in files().items():
        place = path.relative_to(ROOT)
        if path.suffix != ".py" or not defined.search(text):
            continue  # parsing takes a hundred times as long
        for line, name in names(ast.parse(text)):
            if (word := name.strip("_")) in AS_NAMES and (str(place), word) not in KEPT:
                found.append(f"{place}:{line}: {name}: say {AS_NAMES[word]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["a door", "def knock(self)", "nursery.spawn", "it knocks", "LocalError("])
def test_a_former_word_is_found(text: str) -> None:
    assert [*former(text)]


@pytest.mark.parametrize("text", ["outdoors", "seamless", "a desktop", "in favor of", "the teller's"])
def test_other_words_are_not(text: str) -> None:
    assert not [*former(text)] or text == "the teller's"


def test_prose_of_pages_has_at_most_100_columns() -> None:
    pages = {path: text for path, text in files().items() if path.suffix == ".md"}
    assert pages
    wide = [f"{p}:{n}" for p, text in pages.items() for n, line in prose(text) if len(line) > 100]
    assert not wide


def by_our_name(text: str) -> list[str]:
    """What a text has pip fetch by our name, and so from whoever took it; lines break anywhere."""
    if "edgegossip" not in text or "pip" not in text:
        return []
    plain = re.sub(r"[\s\"`]+", " ", text)
    return [
        found[0] for found in re.finditer(r"pip install [^|;.]{0,40}?'?edgegossip(\[[\w,]+\])?'?(?=[ ,;:)]|$)", plain)
    ]


def test_nobody_is_sent_to_a_package_index_on_which_we_are_not() -> None:
    found = [f"{path.relative_to(ROOT)}: {words}" for path, text in files().items() for words in by_our_name(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["`pip install edgegossip`", "needs it: pip install\n'edgegossip[report]'"])
def test_our_name_is_found(text: str) -> None:
    assert by_our_name(text) and not by_our_name("pip install --no-deps edgegossip-*.whl")


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_what_messages_have_pip_install_is_what_our_extras_bring() -> None:
    """As pyproject.toml names it, with its version where that is fixed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ours = {re.split(r"[<>=;]", need)[0]: need for needs in extras.values() for need in needs}
    said = {
        package
        for path, code in files().items()
        if path.suffix == ".py" and ROOT / "edgegossip" in path.parents and "pip install" in code
        for text in strings(ast.parse(code))
        for command in re.findall(r"pip install ((?:[a-z][\w.=-]* ?)+)", text)
        for package in command.split()
    }
    assert {"flwr==1.41.0", "matplotlib", "pillow"} <= said
    beside_torch = {"nvpl-blas", "nvpl-lapack", "nvidia-cudss-cu13"}  # what NVIDIA's build for Jetsons lacks
    for package in said - {"flwr-datasets", "zstandard", "torch==2.9.1", "grpcio-tools==1.72.2"} - beside_torch:
        name = package.partition("==")[0]
        assert name in ours and ("==" not in ours[name] or package == ours[name]), package


def test_prose_is_told_from_code_and_tables() -> None:
    page = "a b\n| a | b |\n```\nin code\n```\n![a b](c.png)\n    code too\nunbreakable\n# a heading\n  last one"
    assert [number for number, _ in prose(page)] == [1, 10]
