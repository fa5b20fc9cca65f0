"""Who may import whom. The pure packages know nothing of torch, gRPC or Flower, and nobody imports what stands above."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "edgegossip"
STDLIB = set(sys.stdlib_module_names) | {"__future__"}
BASE = {"numpy", "edgegossip"}
HEAVY = ("torch", "grpc", "flwr", "matplotlib", "rich")
PURE = {"types", "layout", "frame", "codecs", "gossip", "native"}

# The floor of each part: it may import its own floor's parts where ALONE does not forbid it, and every lower floor.
FLOORS = [
    {"types"},
    {"native", "layout"},
    {"frame", "codecs", "recipe"},
    {"gossip", "profiling", "training"},
    {"mesh", "flower"},
    {"node"},
    {"launch", "report"},
    {"cli"},
]
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
ALONE = {frozenset({"mesh", "flower"})}

# What each part may import from outside, besides the standard library, numpy and the package.
OUTSIDE = {
    "recipe": {"tomli_w"},
    "profiling": {"psutil", "tomli_w"},
    "training": {"torch"},
    "mesh": {"grpc", "google"},
    "flower": {"flwr", "grpc", "google", "torch"},
    "node": {"torch", "psutil", "tomli_w"},
    "launch": {"psutil", "tomli_w", "torch"},
    "report": {"matplotlib", "rich", "psutil"},
    "cli": {"click", "tomli_w", "rich"},
}


def modules():
    return sorted(p.relative_to(ROOT) for p in ROOT.rglob("*.py"))


def part_of(path):
    return path.parts[0].removesuffix(".py")


def imports(path):
    """(dotted name, whether it runs when the module is imported) of every import statement in a file."""
    tree = ast.parse((ROOT / path).read_text())
    package = ["edgegossip", *path.parts[:-1]]
    skipped = {
        node
        for parent in ast.walk(tree)
        if isinstance(parent, ast.If) and ast.unparse(parent.test).endswith("TYPE_CHECKING")
        for child in parent.body
        for node in ast.walk(child)
    }
    late = {
        node
        for parent in ast.walk(tree)
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(parent)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((name, node not in skipped and node not in late) for name in names)


def test_every_part_has_a_floor():
    unknown = {part_of(path) for path in modules()} - set(FLOOR) - {"__init__", "__main__"}
    assert not unknown, f"give these parts a floor in FLOORS: {unknown}"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_only_what_stands_below(path):
    part = part_of(path)
    if part in ("__init__", "__main__"):
        return
    for name, _ in imports(path):
        words = name.split(".")
        if words[0] != "edgegossip" or len(words) == 1 or words[1] not in FLOOR:
            continue
        other = words[1]
        assert FLOOR[other] <= FLOOR[part], f"edgegossip/{path} imports {name}, which stands above it"
        assert frozenset({part, other}) not in ALONE, (
            f"edgegossip/{path} imports {name}: these two must not know each other"
        )


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_from_outside_only_what_it_may(path):
    allowed = BASE | STDLIB | OUTSIDE.get(part_of(path), set())
    for name, _ in imports(path):
        assert name.split(".")[0] in allowed, f"edgegossip/{path} imports {name}"


@pytest.mark.parametrize("path", [p for p in modules() if part_of(p) in PURE], ids=str)
def test_pure_parts_have_no_clock_threads_or_global_randomness(path):
    forbidden = ("time", "datetime", "threading", "multiprocessing", "asyncio", "socket", "random", "concurrent")
    for name, _ in imports(path):
        assert name.split(".")[0] not in forbidden, f"edgegossip/{path} imports {name}"
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            known = ("Generator", "Philox", "PCG64", "SeedSequence", "default_rng", "BitGenerator")
            assert node.attr in known, f"edgegossip/{path}:{node.lineno} uses numpy's global random state"


def test_no_two_parts_import_each_other():
    """No circles between parts, counting only what runs at import time."""
    edges = {}
    for path in modules():
        part = part_of(path)
        if part in FLOOR:
            names = [n.split(".") for n, at_import in imports(path) if at_import]
            edges.setdefault(part, set()).update(
                w[1] for w in names if w[0] == "edgegossip" and len(w) > 1 and w[1] in FLOOR
            )
    for part, others in edges.items():
        seen, todo = set(), list(others - {part})
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += edges.get(here, set()) - {here}
        assert part not in seen, f"{part} is imported, by way of others, from what it imports itself"


def loaded_by(code):
    """Names of the heavy packages that a fresh interpreter holds after running some code."""
    ask = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    ("module", "may"),
    [
        ("edgegossip", set()),
        ("edgegossip.cli.main", set()),
        ("edgegossip.codecs", set()),
        ("edgegossip.gossip", set()),
        ("edgegossip.frame", set()),
        ("edgegossip.recipe", set()),
        ("edgegossip.profiling", set()),
        ("edgegossip.mesh", {"grpc"}),
        ("edgegossip.training", {"torch"}),
    ],
)
def test_importing_loads_nothing_heavy(module, may):
    assert set(loaded_by(f"import {module}")) <= may


def test_help_loads_nothing_heavy():
    call = "import contextlib\nfrom edgegossip.cli.main import main\nwith contextlib.suppress(SystemExit):\n    main(['--help'])"
    assert loaded_by(call) == []
