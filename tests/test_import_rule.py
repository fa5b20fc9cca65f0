"""Who may import whom. The pure packages know nothing of torch, gRPC or Flower, and nobody imports what stands above."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "edgegossip"
STDLIB = set(sys.stdlib_module_names) | {"__future__"}
BASE = {"numpy", "edgegossip"}
HEAVY = ("torch", "grpc", "flwr", "matplotlib", "rich", "cryptography", "PIL", "pyarrow", "datasets")

# Calls that a pure part may not make.
FILE_CALLS = ("open", "print", "input", "np.load", "np.save", "np.savez", "np.memmap", "np.fromfile", "np.loadtxt")

# Part -> the parts it may import. Each names only parts listed before it, so there can be no circle.
PURE_MAY = {
    "types": set(),
    "choices": set(),
    "untrusted": set(),
    "agreement": {"types", "untrusted"},
    "native": {"types"},
    "layout": {"types"},
    "codecs": {"types", "choices", "layout", "native"},
    "frame": {"types", "layout", "codecs", "native"},
    "gossip": {"types", "choices", "layout", "codecs", "frame", "native"},
    "engine": {"types", "agreement", "choices", "layout", "codecs", "frame", "native", "gossip"},
}
MAY = {
    **PURE_MAY,
    "heap": set(),
    "spool": set(),
    "recipe_sections": set(),
    "recipe": {"types", "choices", "recipe_sections"},
    "checkpoint": {*PURE_MAY},
    "sim": {*PURE_MAY, "recipe", "checkpoint"},
    "profiling": {*PURE_MAY, "recipe"},
    "modelfile": {"types", "choices", "profiling"},
    "int8": {"types", "heap", "native"},
    "training": {*PURE_MAY, "heap", "recipe", "profiling", "int8"},
    "security": {"types", "choices", "untrusted", "native"},
    "mesh": {*PURE_MAY, "spool", "recipe", "profiling", "security"},
    "update": {"types", "untrusted", "checkpoint", "mesh", "security"},
    "fleet": {"types", "choices", "untrusted", "recipe", "profiling", "mesh", "security", "update"},
    "flower": {*PURE_MAY, "security", "heap", "spool", "recipe", "checkpoint", "profiling", "training"},
    "node": {
        *PURE_MAY,
        "spool",
        "recipe",
        "modelfile",
        "checkpoint",
        "profiling",
        "training",
        "security",
        "mesh",
        "flower",
    },
    "export": {*PURE_MAY, "recipe", "modelfile", "checkpoint", "profiling", "int8", "training", "node"},
    "bench": {*PURE_MAY, "heap", "recipe", "checkpoint", "profiling", "int8", "training", "mesh", "flower", "export"},
    "report": {*PURE_MAY, "recipe", "profiling", "training", "node"},
    "study": {*PURE_MAY, "recipe", "profiling", "training", "node", "report"},
    "launch": {
        *PURE_MAY,
        "security",
        "fleet",
        "recipe",
        "checkpoint",
        "profiling",
        "training",
        "mesh",
        "flower",
        "modelfile",
        "spool",
        "node",
        "export",
        "report",
    },
    "scale": {
        *PURE_MAY,
        "security",
        "fleet",
        "recipe",
        "spool",
        "checkpoint",
        "profiling",
        "int8",
        "training",
        "mesh",
        "flower",
        "node",
        "bench",
        "report",
        "study",
        "launch",
    },
    "image": {"types", "untrusted", "choices", "security", "mesh", "fleet", "update"},
}
MAY["result"] = {"types", "recipe", "modelfile", "profiling", "training", "export", "report"}
MAY["notebook"] = {"types", "recipe", "launch", "profiling", "result"}
MAY["integrations"] = {"types", "training"}
MAY["cli"] = set(MAY)

# What each part may import from outside, besides the standard library, numpy and the package.
OUTSIDE = {
    "codecs": {"zstandard"},
    "recipe": {"tomli_w"},
    "profiling": {"psutil"},
    "int8": {"torch"},
    "training": {"torch", "tomli_w", "PIL", "pyarrow", "datasets", "flwr_datasets"},
    "bench": {"torch", "grpc", "psutil"},
    "mesh": {"grpc", "grpc_health", "grpc_reflection", "google"},
    "security": {"cryptography"},
    "fleet": {"psutil"},
    "flower": {"flwr", "grpc", "google", "httpx", "starlette", "uvicorn"},  # the last three are dependencies of flwr
    "report": {"matplotlib", "rich", "pyarrow"},
    "study": {"matplotlib"},
    "export": {"torch", "onnx", "onnxruntime", "onnxscript"},
    "result": {"torch", "pandas"},
    "notebook": {"cloudpickle"},
    "scale": {"tomli_w", "torch", "matplotlib", "psutil"},
    "image": {"nanobind"},
    "launch": {"click", "psutil", "setproctitle"},
    "integrations": {"torch", "transformers", "lightning", "pytorch_lightning"},
    "cli": {"click"},
}


def modules():
    return sorted(p.relative_to(ROOT) for p in ROOT.rglob("*.py"))


def part_of(path):
    return path.parts[0].removesuffix(".py")


@functools.cache
def tree(path):
    return ast.parse((ROOT / path).read_text())


@functools.cache
def imports(path):
    """Dotted names of everything that a file imports, be it at the top, in a function or for types only."""
    return list(_imports(path))


def _imports(path):
    package = ["edgegossip", *path.parts[:-1]]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def test_every_part_is_listed_after_what_it_may_import():
    unknown = {part_of(path) for path in modules()} - set(MAY) - {"__init__", "__main__"}
    assert not unknown, f"say in MAY what these parts may import: {unknown}"
    order = list(MAY)
    for part, others in MAY.items():
        assert others <= set(order[: order.index(part)])


def faults(check, chosen=lambda part: True):
    """What `check(path)` finds wrong in the modules of the chosen parts, each with its file."""
    found = [f"edgegossip/{path}: {fault}" for path in modules() if chosen(part_of(path)) for fault in check(path)]
    return "\n".join(found)


def test_imports_only_parts_below():
    def check(path):
        part = part_of(path)
        for name in imports(path):
            words = name.split(".")
            if words[0] == "edgegossip" and len(words) > 1 and words[1] in MAY and words[1] != part:
                if words[1] not in MAY[part]:
                    yield f"imports {name}; {part} may import {sorted(MAY[part])}"

    assert not faults(check, lambda part: part not in ("__init__", "__main__"))


def test_no_modules_import_one_another_in_a_circle():
    """Imports in functions and for types only count, too."""
    paths = {
        ".".join(["edgegossip", *path.with_suffix("").parts]).removesuffix(".__init__"): path for path in modules()
    }
    imported = {}
    for name, path in paths.items():
        wanted = {w if w in paths else w.rpartition(".")[0] for w in imports(path)}
        imported[name] = (wanted & paths.keys()) - {name}
    imported["edgegossip"] = set()  # it offers names, and imports nothing before one is asked for
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle


def test_imports_from_outside_only_what_it_may():
    def check(path):
        allowed = BASE | STDLIB | OUTSIDE.get(part_of(path), set())
        yield from (f"imports {name}" for name in imports(path) if name.split(".")[0] not in allowed)

    assert not faults(check)


def test_pure_parts_have_no_clock_threads_files_processes_or_global_randomness():
    """A topology file alone is read where it is parsed, once, before a run."""
    forbidden = ("time", "datetime", "threading", "multiprocessing", "asyncio", "socket", "random", "concurrent")
    outside = ("os", "io", "pathlib", "shutil", "tempfile", "mmap", "fcntl", "subprocess", "signal", "pickle", "ctypes")
    known = ("Generator", "Philox", "PCG64", "SeedSequence", "default_rng", "BitGenerator")

    def check(path):
        names = {name.split(".")[0] for name in imports(path)}
        names -= {"pathlib"} if path.as_posix() == "gossip/topologies/file.py" else set()
        yield from (f"imports {name}" for name in sorted(names.intersection(forbidden + outside)))
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
                if node.attr not in known:
                    yield f"line {node.lineno} uses numpy's global random state"
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in FILE_CALLS:
                yield f"line {node.lineno} calls {ast.unparse(node.func)}"

    assert not faults(check, lambda part: part in PURE_MAY)


def test_nobody_but_the_engine_carries_an_algorithms_actions_out():
    """Others see what the engine makes of them; what an algorithm sends goes through as it is."""
    actions = {
        f"edgegossip.gossip.base.{name}" for name in ("SetTimer", "Checkpoint", "RoundDone", "Suspect", "Adopted")
    }

    def check(path):
        yield from (f"imports {name}" for name in imports(path) if name in actions)

    assert not faults(check, lambda part: part not in ("gossip", "engine"))


def test_only_a_campaign_of_the_simulator_looks_at_the_time_and_starts_processes():
    known = ("time", "datetime", "threading", "multiprocessing", "asyncio", "socket", "concurrent", "secrets", "os")

    def check(path):
        for name in imports(path) if path.name != "campaign.py" else ():
            if name.split(".")[0] in known or name.startswith("random.") and name != "random.Random":
                yield f"imports {name}"

    assert not faults(check, lambda part: part == "sim")


def test_a_fault_is_found_and_named(monkeypatch):
    monkeypatch.setitem(OUTSIDE, "mesh", set())
    with pytest.raises(AssertionError, match="edgegossip/mesh/.* imports grpc"):
        test_imports_from_outside_only_what_it_may()


# What may be loaded of the heavy packages when a module is imported.
LOADS = {
    "edgegossip": set(),
    "edgegossip.cli.main": set(),
    "edgegossip.codecs": set(),
    "edgegossip.gossip": set(),
    "edgegossip.frame": set(),
    "edgegossip.engine.node": set(),
    "edgegossip.engine.server": set(),
    "edgegossip.recipe": set(),
    "edgegossip.sim": set(),
    "edgegossip.profiling": set(),
    "edgegossip.mesh": {"grpc"},
    "edgegossip.int8": {"torch"},
    "edgegossip.training": {"torch"},
    "edgegossip.bench": set(),
    "edgegossip.cli.bench": set(),
    "edgegossip.cli.study": set(),
    "edgegossip.study.campaign": set(),
    "edgegossip.study.pool": set(),
    "edgegossip.scale.devices": set(),
    "edgegossip.scale.predict": set(),
}
HELP = "edgegossip --help"
PROBE = f"""
import contextlib, importlib, os, sys
for what in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    if what == {HELP!r}:
        from edgegossip.cli.main import main
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
            main(["--help"])
    else:
        importlib.import_module(what)
    print(what, *[m for m in {HEAVY!r} if m in sys.modules], sep=",", flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def loaded():
    """By what was imported: the heavy packages that an interpreter holds which did nothing else (a fork of a fresh one)."""
    done = subprocess.run([sys.executable, "-c", PROBE, *LOADS, HELP], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {what: set(found) for what, *found in (line.split(",") for line in done.stdout.splitlines())}


@pytest.mark.parametrize("module", LOADS)
def test_importing_loads_nothing_heavy(module, loaded):
    assert loaded[module] <= LOADS[module]


def test_help_loads_nothing_heavy(loaded):
    assert loaded[HELP] == set()


def test_what_is_loaded_is_seen(loaded):
    assert loaded["edgegossip.int8"] == {"torch"}
