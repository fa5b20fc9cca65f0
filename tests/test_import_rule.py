"""Who may import whom. The pure packages know nothing of torch, gRPC or Flower, and nobody imports
what stands above."""

import ast
import functools
import gc
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

from edgegossip import codecs, gossip

ROOT = Path(__file__).parents[1]
HOUSES = ("edgegossip", "lab")  # what ships, and what proves it
STDLIB = set(sys.stdlib_module_names) | {"__future__"}
BASE = {"numpy", "typing_extensions", "edgegossip"}
HEAVY = (
    *("torch", "grpc", "flwr", "matplotlib", "rich", "cryptography", "PIL", "pandas", "pyarrow", "datasets", "onnx"),
    *("torch._dynamo", "torch._inductor", "sympy"),  # torch's compiler: 80 MB, and seconds of a small board
)

# Calls that a pure part may not make.
FILE_CALLS = ("open", "print", "input", "np.load", "np.save", "np.savez", "np.memmap", "np.fromfile", "np.loadtxt")

# Part -> the parts it may import. Each names only parts listed before it, so there can be no
# circle.
PURE_MAY = {
    "types": set(),
    "version": set(),
    "choices": {"types"},
    "options": {"types", "choices"},
    "untrusted": set(),
    "plugins": {"types"},
    "agreement": {"types", "untrusted"},
    "native": {"types"},
    "layout": {"types"},
    "codecs": {"types", "choices", "plugins", "layout", "native"},
    "frame": {"types", "layout", "codecs", "native"},
    "gossip": {"types", "choices", "plugins", "layout", "codecs", "frame", "native"},
    "engine": {"types", "agreement", "choices", "layout", "codecs", "frame", "native", "gossip"},
}
MAY = {
    **PURE_MAY,
    "encoding": {"types", "layout", "codecs", "frame"},
    "verify": {"types", "layout", "codecs"},
    "files": {"types"},
    "memory": set(),
    "threads": set(),
    "recipe": {"files", "types", "choices", "options"},
    "checkpoint": {*PURE_MAY, "threads"},
    "telemetry": {"files", *PURE_MAY, "recipe"},
    "modelfile": {"files", "types", "choices", "telemetry"},
    "int8": {"files", "types", "memory", "native"},
    "training": {"files", *PURE_MAY, "memory", "modelfile", "recipe", "telemetry", "int8"},
    "security": {"files", "types", "choices", "untrusted", "native"},
    "mesh": {*PURE_MAY, "memory", "threads", "recipe", "telemetry", "security"},
    "update": {"version", "files", "types", "untrusted", "checkpoint", "mesh", "security"},
    "fleet": {"version", "files", "types", "choices", "untrusted", "recipe", "telemetry", "mesh", "security", "update"},
    "flower": {*PURE_MAY, "security", "memory", "recipe", "checkpoint", "telemetry", "training"},
    "node": {
        "version",
        "files",
        *PURE_MAY,
        "memory",
        "threads",
        "recipe",
        "modelfile",
        "checkpoint",
        "telemetry",
        "training",
        "security",
        "mesh",
        "flower",
    },
    "report": {
        "version",
        "files",
        *PURE_MAY,
        "options",
        "recipe",
        "modelfile",
        "checkpoint",
        "telemetry",
        "training",
        "node",
        "security",  # the page has the places and times of every server of ours
    },
    "export": {"files", "types", "recipe", "modelfile", "telemetry", "int8", "training", "report"},
    "sweep": {*PURE_MAY, "files", "telemetry", "report"},
    "studies": {"version", "sweep", "files", *PURE_MAY, "recipe", "telemetry", "training", "node", "report", "flower"},
    "integrations": {"types", "recipe", "telemetry", "training"},
    "fleet.launch": {
        *PURE_MAY,
        "options",
        "integrations",
        "files",
        "security",
        "fleet",
        "recipe",
        "checkpoint",
        "telemetry",
        "training",
        "mesh",
        "flower",
        "modelfile",
        "memory",
        "node",
        "report",
    },
    "scale": {
        "sweep",
        *PURE_MAY,
        "files",
        "security",
        "fleet",
        "recipe",
        "memory",
        "checkpoint",
        "telemetry",
        "int8",
        "training",
        "mesh",
        "flower",
        "node",
        "report",
        "studies",
        "fleet.launch",
    },
    "accept": {
        "sweep",
        *PURE_MAY,
        "files",
        "fleet",
        "recipe",
        "telemetry",
        "memory",
        "int8",
        "training",
        "verify",
        "scale",
        "report",
    },
    "fleet.image": {
        "version",
        "files",
        "types",
        "untrusted",
        "choices",
        "options",
        "security",
        "mesh",
        "fleet",
        "update",
    },
}
MAY["result"] = {"types", "recipe", "modelfile", "telemetry", "training", "export", "report"}
MAY["research"] = {"types", "recipe", "report", "result", "studies", "scale"}
MAY["notebook"] = {"types", "recipe", "fleet.launch", "telemetry", "result"}
MAY["cli"] = set(MAY)
MAY["lab.sim"] = {
    *("files", *PURE_MAY, "memory", "threads", "recipe", "checkpoint", "telemetry", "training"),
    *("security", "mesh", "node", "cli"),
}
MAY["lab"], MAY["lab.bench"] = set(), set(MAY)
MAY["lab.laws"] = {"telemetry", "types"}
MAY["lab.smoke"] = MAY["lab.soak"] = set(MAY)
MAY["lab.results"] = set(MAY)
MAY["lab.faults"] = {"cli", "options", "types"}
MAY["lab.papers"] = MAY["lab.netns"] = set(MAY)

# What each part may import from outside, besides the standard library, numpy and the package.
OUTSIDE = {
    "codecs": {"zstandard"},
    "options": {"tomli_w"},
    "recipe": {"tomli_w"},
    "telemetry": {"psutil"},
    "int8": {"torch", "onnx", "onnxruntime", "onnxscript"},
    "training": {"torch", "tomli_w", "tokenizers", "PIL", "pandas", "pyarrow", "datasets", "flwr_datasets"},
    "accept": {"torch"},
    "lab.bench": {"torch", "grpc", "psutil", "click", "flwr"},
    "lab.sim": {"click"},
    "lab.faults": {"click", "pytest", "torch"},
    "lab.netns": {"click"},
    "lab.smoke": {"torch"},
    "lab.soak": {"psutil", "torch"},
    "lab.results": {
        "torch",
        "grpc",
        "psutil",
        "flwr",
        "rich",
        "matplotlib",
        "job",
        "datasets",
        "sklearn",
        "PIL",
        "tokenizers",
        "transformers",
    },
    "lab.papers": {"torch", "mpmath", "scipy", "matplotlib"},
    "mesh": {"grpc", "google"},
    "security": {"cryptography"},
    "fleet": {"psutil"},
    "flower": {"flwr", "grpc", "google", "httpx", "starlette", "uvicorn"},  # the last three are dependencies of flwr
    "report": {"matplotlib", "rich", "tensorboard", "IPython"},
    "sweep": {"matplotlib"},
    "export": {"torch"},
    "result": {"torch", "pandas"},
    "research": {"pandas"},
    "notebook": {"cloudpickle"},
    "scale": {"tomli_w", "torch", "psutil"},
    "fleet.image": {"nanobind"},
    "fleet.launch": {"click", "psutil", "setproctitle"},
    "integrations": {"torch", "transformers", "lightning", "pytorch_lightning", "mlflow", "wandb"},
    "cli": {"click"},
}


def modules():
    return sorted(p.relative_to(ROOT) for house in HOUSES for p in (ROOT / house).rglob("*.py"))


def part_of(path):
    """ "mesh" for edgegossip/mesh/base.py; of fleet and lab parts are told apart: "fleet.image"."""
    house, *rest = path.with_suffix("").parts
    rest = rest if house == "edgegossip" else [house, *rest]
    return inner if len(rest) > 1 and (inner := f"{rest[0]}.{rest[1]}") in MAY else rest[0]


@pytest.fixture(scope="module", autouse=True)
def no_garbage():
    """A million nodes are there to stay, and gone after the last test: nothing is to look for."""
    gc.disable()
    yield
    tree.cache_clear()
    gc.enable()


@functools.cache
def tree(path):
    return ast.parse((ROOT / path).read_text())


@functools.cache
def imports(path):
    """Dotted names of everything that a file imports, be it at the top, in a function or for types
    only."""
    return list(_imports(path))


def statements(node):
    """All statements below, and no expressions, of which there are ten times as many."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, block, ()):
            yield child
            yield from statements(child)


def _imports(path):
    package = path.parts[:-1]
    for node in statements(tree(path)):
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
    found = [f"{path}: {fault}" for path in modules() if chosen(part_of(path)) for fault in check(path)]
    return "\n".join(found)


def test_what_ships_imports_nothing_of_the_lab():
    assert not faults(lambda path: [n for n in imports(path) if n.split(".")[0] == "lab" and path.parts[0] != "lab"])


def test_imports_only_parts_below():
    def check(path):
        part = part_of(path)
        for name in imports(path):
            words = name.split(".")
            if words[0] in HOUSES and len(words) > 1:
                other = part_of(Path(*words))
                if other in MAY and other not in {part, *MAY[part]}:
                    yield f"imports {name}; {part} may import {sorted(MAY[part])}"

    assert not faults(check, lambda part: part not in ("__init__", "__main__"))


def test_no_modules_import_one_another_in_a_circle():
    """Imports in functions and for types only count, too."""
    paths = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in modules()}
    imported = {}
    for name, path in paths.items():
        wanted = {w if w in paths else w.rpartition(".")[0] for w in imports(path)}
        imported[name] = (wanted & paths.keys()) - {name}
    imported["edgegossip"] = set()  # it offers names, and imports nothing before one is asked for
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle


def test_imports_from_outside_only_what_it_may():
    def check(path):
        allowed = BASE | STDLIB | OUTSIDE.get(part_of(path), set()) | ({"lab"} if path.parts[0] == "lab" else set())
        yield from (f"imports {name}" for name in imports(path) if name.split(".")[0] not in allowed)

    assert not faults(check)


def test_pure_parts_have_no_clock_threads_files_processes_or_global_randomness():
    forbidden = ("time", "datetime", "threading", "multiprocessing", "asyncio", "socket", "random", "concurrent")
    outside = ("os", "io", "pathlib", "shutil", "tempfile", "mmap", "fcntl", "subprocess", "signal", "pickle", "ctypes")
    known = ("Generator", "Philox", "PCG64", "SeedSequence", "default_rng", "BitGenerator")

    def check(path):
        names = {name.split(".")[0] for name in imports(path)}
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


def test_nobody_decides_by_the_name_of_an_algorithm_or_a_codec():
    """What one can do is its trait. Names stand where it is made, in the registry, and as values
    that a recipe begins with; those of codecs in lists of what is tried, too. `fp32` is no codec's
    name alone, and neither is `auto`."""
    algorithms, coders = set(gossip.names()), set(codecs.names()) - {"fp32", "fp16", "bf16", "auto"}

    def check(path):
        within, text = part_of(path), (ROOT / path).read_text()
        for node in ast.walk(tree(path)) if any(name in text for name in algorithms | coders) else ():
            if isinstance(node, ast.Compare | ast.Dict):
                said = {
                    one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
                if within != "codecs" and said & coders:
                    yield f"line {node.lineno}: {said & coders}"
            elif isinstance(node, ast.Constant) and node.value in algorithms and within not in ("gossip", "recipe"):
                yield f"line {node.lineno}: {node.value}"

    assert not faults(check, lambda part: not part.startswith("lab"))


def test_no_two_rooms_have_a_class_of_one_name():
    """A reader who meets a name knows whose it is."""
    rooms = {}
    for path in modules():
        for node in tree(path).body if path.parts[0] == "edgegossip" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                rooms.setdefault(node.name, set()).add(path.parts[1])
    assert not {name: found for name, found in rooms.items() if len(found) > 1}


def test_only_a_campaign_of_the_simulator_looks_at_the_time_and_starts_processes():
    known = ("time", "datetime", "threading", "multiprocessing", "asyncio", "socket", "concurrent", "secrets", "os")

    def check(path):
        for name in imports(path) if path.name not in ("campaign.py", "process.py", "rpc.py", "tls.py") else ():
            if name.split(".")[0] in known or (name.startswith("random.") and name != "random.Random"):
                yield f"imports {name}"

    assert not faults(check, lambda part: part == "lab.sim")


def test_a_fault_is_found_and_named(monkeypatch):
    monkeypatch.setitem(OUTSIDE, "mesh", set())
    with pytest.raises(AssertionError, match="edgegossip/mesh/.* imports grpc"):
        test_imports_from_outside_only_what_it_may()


# Of these nothing heavy is loaded when they are imported; of the others what stands beside them.
LIGHT = (
    *("edgegossip", "edgegossip.cli.main", "edgegossip.codecs", "edgegossip.encoding", "edgegossip.gossip"),
    *("edgegossip.frame", "edgegossip.engine.node", "edgegossip.engine.server", "edgegossip.recipe"),
    *("lab.sim", "edgegossip.telemetry", "lab.bench", "lab.bench.__main__"),
    *("edgegossip.cli.study", "edgegossip.studies.campaign", "edgegossip.sweep.campaign"),
    *("edgegossip.scale.devices", "edgegossip.scale.predict", "edgegossip.mesh", "edgegossip --help"),
    *("edgegossip:Result", "edgegossip.report.plots", "edgegossip.report.table", "edgegossip.report.live"),
    *("edgegossip.training.data.download", "a recipe is checked"),
)
LOADS = {name: set() for name in LIGHT} | {
    "edgegossip.int8": {"torch"},
    "edgegossip.int8:qdq.qdq_model": set(),
    "a board trains": set(),  # torch, which int8 has loaded
}
PROBE = f"""
import contextlib, pkgutil, sys
from edgegossip import recipe, training
known = set()
for what in sys.argv[1:]:
    if what.endswith("--help"):
        from edgegossip.cli.main import main
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr):
            main(["--help"])
    elif what == "a recipe is checked":
        training.check(recipe.Recipe())
        training.partition_counts(recipe.Recipe())
    elif what == "a board trains":  # torch.optim would load the compiler with its first step, and the meta device, too
        chosen = recipe.load("quickstart-gossip", ("model.name=resnet8",))
        training.layout_of(chosen)
        board = training.build_workload(chosen, 0)
        x = board.initial(1)
        board.local_update(x, 0)
        board.evaluate(x, 1)
        board.restore(board.snapshot())
    else:
        pkgutil.resolve_name(what)
    found = {{m for m in {HEAVY!r} if m in sys.modules}}
    print(what, *found - known, sep=",")
    known |= found
"""


def test_importing_and_help_load_nothing_heavy():
    """One after the other, in an interpreter that does nothing else; that torch is seen shows that
    others would be."""
    done = subprocess.run([sys.executable, "-c", PROBE, *LOADS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {what: set(found) for what, *found in (line.split(",") for line in done.stdout.splitlines())} == LOADS


def test_a_child_of_a_test_has_the_time_that_the_test_has():
    """On a busy machine a limit of its own, shorter than the test's, ends what would end well."""
    short = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "subprocess.run"
        if any(k.arg == "timeout" and isinstance(k.value, ast.Constant) and k.value.value <= 120 for k in call.keywords)
    ]
    assert not short, f"pytest's own limit is enough: {short}"
