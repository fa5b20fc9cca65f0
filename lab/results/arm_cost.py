#!/usr/bin/env python3
"""Predict what int8 training and the codecs cost on an Arm core, beside torch's fp32, without one.

    python -m lab.results.arm_cost a72|a76 [--measure NAME]... [--batch N] [--values N] [--top N]
        [--caches] [--again] [--work build/arm] [--out lab/results/pages/arm-cost.json]

A Python of Debian for arm64 with torch's own wheel and our kernels, cross-compiled, runs in QEMU's
user mode. A plugin counts how often every block of instructions is executed in one step
(arm/guest.py says of what). llvm-mca says what a block costs on the core's schedule; the sum over
all blocks is the prediction. Predictions they are: no figure is a time.

Needs Debian 12, and of its packages:
    apt install llvm-22 qemu-user g++-aarch64-linux-gnu libglib2.0-dev pkg-config
The first run fetches some 250 MB (packages for arm64, torch's wheel, QEMU's source) and compiles
the kernels. --top shows the dearest blocks; --again predicts anew from the counts of the last run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgegossip.telemetry.machine import result_source

ROOT = Path(__file__).resolve().parents[2]
PARTS = Path(__file__).parent / "arm"
DEBIAN = ("python3.11", "libpython3.11-dev", "libstdc++6", "libgomp1", "zlib1g")
# torch: as scripts/lock_boards.py says, the last build on PyPI for the CPU that a Cortex-A72 runs.
PACKAGES = shlex.split(
    "torch==2.9.1 numpy==2.4.6 filelock typing_extensions sympy mpmath networkx jinja2 markupsafe fsspec zstandard "
    "setproctitle psutil tomli-w click"
)
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64", "manylinux_2_17_aarch64")


@dataclass(frozen=True)
class Core:
    """Says how a core is emulated and what it can do in a cycle."""

    name: str
    boards: str
    emulated: str  # -cpu of QEMU
    midr: int  # how Linux names the core to libraries
    schedule: str  # -mcpu of llvm-mca
    width: int  # micro-operations dispatched a cycle
    loads: tuple[str, ...]  # units of the schedule
    stores: tuple[str, ...]
    caches: str  # of QEMU's cache plugin


# LLVM gives Cortex-A72 the schedule of A57, with the same ports, and knows A76 as Neoverse N1,
# which is that core for servers. The width of A76 is its decoder's, of Arm's guide; LLVM's is 3.
CORES = {
    "a72": Core(
        "Cortex-A72", "Raspberry Pi 4", "cortex-a72", 0x410FD083, "cortex-a72", 3, ("A57UnitL",), ("A57UnitS",),
        "dcachesize=32768,dassoc=2,dblksize=64,icachesize=49152,iassoc=3,iblksize=64,l2=on,l2cachesize=1048576,l2assoc=16,l2blksize=64",
    ),
    "a76": Core(
        "Cortex-A76", "Raspberry Pi 5", "cortex-a76", 0x414FD0B1, "neoverse-n1", 4, ("N1UnitL",), ("N1UnitL",),
        "dcachesize=65536,dassoc=4,dblksize=64,icachesize=65536,iassoc=4,iblksize=64,l2=on,l2cachesize=524288,l2assoc=8,l2blksize=64",
    ),
}  # fmt: skip

STEPS = tuple(f"step/{variant}/resnet20" for variant in ("batchnorm", "int8-dw16", "int8-dw8"))
CONVOLUTIONS = tuple(
    f"conv/{variant}/{layer}" for layer in ("16x32", "64x8") for variant in ("fp32", "int8-dw16", "int8-dw8")
)
CODECS = tuple(
    f"codec/{name}/{way}"
    for name in (
        "minmax8/-",
        "fp16/-",
        "eden/-",
        "topk/-",
        "qsgd8/raw",
        "qsgd4/raw",
        "qsgd4/huffman",
        "qsgd4/elias",
    )
    for way in ("encode", "decode")
)
MEASURES = STEPS + CONVOLUTIONS + CODECS


# The emulated machine.

TOOLS = ("llvm-mca-22", "llvm-mc-22", "qemu-aarch64", "aarch64-linux-gnu-g++", "gcc", "pkg-config")
WITH_TOOLS = "llvm-22 qemu-user g++-aarch64-linux-gnu libglib2.0-dev pkg-config"


def run(*command: str | Path, **more: Any) -> str:
    done = subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **more)
    return done.stdout


class Machine:
    """Makes, once, what runs on the emulated core: Debian's files, torch, our package, plugins."""

    def __init__(self, work: Path) -> None:
        self.work, self.root = work.resolve(), work.resolve() / "root"
        self.packages = self.root / "usr/local/lib/python3.11/dist-packages"
        self.work.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        for name in ("debian", "torch", "plugins"):
            if not (stamp := self.work / f".{name}").exists():
                print(f"making {name} (once)", file=sys.stderr)
                getattr(self, f"_{name}")()
                stamp.touch()
        self._compiled()
        self._package()

    def _apt(self, architecture: str, kind: str) -> dict[str, str]:
        """Return the environment of an apt with a state of its own, so that the system's stays."""
        place = self.work / f"apt-{architecture}-{kind}"
        for folder in ("lists/partial", "cache/archives/partial", "sources"):
            (place / folder).mkdir(parents=True, exist_ok=True)
        (place / "status").touch()
        known = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages")
        sources = "".join(f"{kind} {one} main\n" for one in sorted({*known.splitlines()}) if " bookworm" in one)
        if not sources:
            sys.exit("apt knows no source of Debian 12 (bookworm), whose Python for arm64 is counted")
        (place / "sources/debian.list").write_text(sources)
        conf = place / "apt.conf"
        conf.write_text(
            f'APT::Architecture "{architecture}"; APT::Architectures {{"{architecture}";}};\n'
            'APT::Sandbox::User "root";\n'
            f'Dir::State "{place}"; Dir::State::status "{place}/status"; Dir::Cache "{place}/cache";\n'
            f'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "{place}/sources";\n'
        )
        environment = {**os.environ, "APT_CONFIG": str(conf)}
        run("apt-get", "-q", "update", env=environment)
        return environment

    def _debian(self) -> None:
        environment = self._apt("arm64", "deb")
        run("apt-get", "-qy", "install", "--no-install-recommends", "--download-only", *DEBIAN, env=environment)
        for package in sorted((self.work / "apt-arm64-deb/cache/archives").glob("*.deb")):
            run("dpkg", "-x", package, self.root)

    def _torch(self) -> None:
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        where = ("--target", self.packages, "--python-version", "3.11", "--only-binary=:all:", "--no-deps")
        run(sys.executable, "-m", "pip", "install", "-q", *where, *platforms, *PACKAGES)

    def _plugins(self) -> None:
        environment = self._apt("amd64", "deb-src")
        run("apt-get", "-q", "source", "--download-only", "qemu", cwd=self.work, env=environment)
        archive = next(self.work.glob("qemu_*.orig.tar.xz"))
        wanted = ("*/contrib/plugins/cache.c", "*/include/qemu/qemu-plugin.h")
        run("tar", "-xf", archive, "-C", self.work, "--strip-components=1", "--wildcards", *wanted)
        cache = (self.work / "contrib/plugins/cache.c").read_text()
        cache = cache.replace(
            "QEMU_PLUGIN_EXPORT\nint qemu_plugin_install", f"{MARKED}QEMU_PLUGIN_EXPORT\nint qemu_plugin_install"
        )
        registers = "qemu_plugin_register_vcpu_tb_trans_cb(id, vcpu_tb_trans);"
        (self.work / "cache.c").write_text(
            cache.replace(registers, f"qemu_plugin_register_vcpu_syscall_cb(id, marked);\n    {registers}")
        )

    def _compiled(self) -> None:
        flags = shlex.split(run("pkg-config", "--cflags", "--libs", "glib-2.0"))
        for source in (PARTS / "blocks.c", self.work / "cache.c"):
            made = self.work / f"{source.stem}.so"
            run("gcc", "-O2", "-shared", "-fPIC", f"-I{self.work}/include/qemu", source, "-o", made, *flags)

    def _package(self) -> None:
        """Cross-compile the kernels, when they have changed, and put our package beside torch."""
        scripts = Path(sys.executable).parent
        environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
        include = self.root / "usr/include"
        build = self.work / "native"
        if not (build / "build.ninja").exists():
            nanobind = run(sys.executable, "-m", "nanobind", "--cmake_dir").strip()
            options = {
                "CMAKE_BUILD_TYPE": "Release",
                "CMAKE_SYSTEM_NAME": "Linux",
                "CMAKE_SYSTEM_PROCESSOR": "aarch64",
                "CMAKE_CXX_COMPILER": "aarch64-linux-gnu-g++",
                "CMAKE_CXX_FLAGS": f"-idirafter {include} -idirafter {include}/aarch64-linux-gnu",
                "Python_EXECUTABLE": sys.executable,
                "Python_INCLUDE_DIR": include / "python3.11",
                "nanobind_DIR": nanobind,
            }
            run(
                "cmake",
                "-S",
                ROOT,
                "-B",
                build,
                "-G",
                "Ninja",
                *(f"-D{k}={v}" for k, v in options.items()),
                env=environment,
            )
        run("cmake", "--build", build, env=environment)
        ours = self.packages / "edgegossip"
        ignored = shutil.ignore_patterns("src", "__pycache__", "*.so")
        shutil.copytree(ROOT / "edgegossip", ours, dirs_exist_ok=True, ignore=ignored)
        for old in (ours / "native").glob("_native*.so"):
            old.unlink()
        shutil.copy(next(build.glob("_native*.so")), ours / "native" / "_native.so")

    def guest(self, core: Core, plugin: str, folder: Path, arguments: Iterable[str]) -> str:
        """Run the guest under a plugin; what it printed."""
        identity = self.root / "sys/devices/system/cpu/cpu0/regs/identification"
        identity.mkdir(parents=True, exist_ok=True)
        (identity / "midr_el1").write_text(f"0x{core.midr:016x}\n")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "EDGEGOSSIP_THREADS": "1", "PYTHONHASHSEED": "0"}
        environment.pop("EDGEGOSSIP_ISA", None)
        emulator = ("qemu-aarch64", "-L", self.root, "-cpu", core.emulated, "-plugin", plugin)
        log = ("-d", "plugin", "-D", folder / "plugin.log")
        return run(*emulator, *log, self.root / "usr/bin/python3.11", PARTS / "guest.py", *arguments, env=environment)


# What QEMU's cache plugin lacks: figures between two marks of the guest, as blocks.c has them.
MARKED = """
static void marked(qemu_plugin_id_t id, unsigned int cpu, int64_t number, uint64_t mark, uint64_t a2, uint64_t a3, uint64_t a4,
                   uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    if (number != 156 || mark > 7000000 || mark + 1000 <= 7000000) {
        return;
    }
    if (mark == 7000000) {
        Cache *all[] = { l1_dcaches[0], l1_icaches[0], l2_ucaches[0] };
        for (int i = 0; i < 3; i++) {
            all[i]->accesses = all[i]->misses = 0;
        }
    } else {
        Cache *d = l1_dcaches[0], *i = l1_icaches[0], *l2 = l2_ucaches[0];
        g_autofree char *line = g_strdup_printf("mark %d %lu %lu %lu %lu %lu %lu\\n", (int)(7000000 - mark), d->accesses,
            d->misses, i->accesses, i->misses, l2->accesses, l2->misses);
        qemu_plugin_outs(line);
    }
}

"""


# What a block costs.

ENOUGH = 0.9  # of all instructions: what is left, thousands of blocks, has the mean cost of these that are no loops


@dataclass(frozen=True)
class Block:
    """Holds instructions without a branch but the last, as hexadecimal words."""

    words: tuple[str, ...]

    @property
    def is_loop(self) -> bool:
        """Whether the last instruction goes back to the first."""
        word, back = int(self.words[-1], 16), -(len(self.words) - 1)
        if word >> 24 in (0x54, 0x34, 0x35, 0xB4, 0xB5):  # b.cond, cbz, cbnz
            return (word >> 5 & 0x7FFFF) == back & 0x7FFFF
        return word >> 24 in (0x36, 0x37, 0xB6, 0xB7) and (word >> 5 & 0x3FFF) == back & 0x3FFF


@dataclass(frozen=True)
class Cost:
    """Holds a block's cycles, and the least that its loads, stores and width allow."""

    cycles: float
    bound: float
    text: tuple[str, ...]


class Model:
    """Asks llvm-mca, once for a block."""

    ROUNDS = 40  # of a loop; of other blocks ports and width alone count
    FEW = 4

    def __init__(self, core: Core) -> None:
        self.core, self.known = core, dict[Block, Cost]()

    def learn(self, blocks: Sequence[Block]) -> None:
        new = [block for block in dict.fromkeys(blocks) if block not in self.known]
        for rounds, some in (
            (self.ROUNDS, [block for block in new if block.is_loop]),
            (self.FEW, [block for block in new if not block.is_loop]),
        ):
            for begin in range(0, len(some), 400):
                self._learn(some[begin : begin + 400], rounds)

    def _learn(self, blocks: list[Block], rounds: int) -> None:
        lines = [line for block in blocks for line in disassembled(block.words)]
        source, at = [], 0
        for number, block in enumerate(blocks):
            text, at = lines[at : at + len(block.words)], at + len(block.words)
            source += [f"# LLVM-MCA-BEGIN {number}", *(line for line in text if line), "nop", "# LLVM-MCA-END"]
        core = self.core
        options = ("-mtriple=aarch64", f"-mcpu={core.schedule}", "-mattr=+v8.4a,+fullfp16", f"-dispatch={core.width}")
        how = ("-json", "-skip-unsupported-instructions=any", f"-iterations={rounds}")
        told = run("llvm-mca-22", *options, *how, input="\n".join(source) + "\n", stderr=subprocess.DEVNULL)
        document = json.loads(told)
        resources = document["TargetInfo"]["Resources"]
        for region in document["CodeRegions"]:
            block = blocks[int(region["Name"])]
            self.known[block] = self._cost(block, region, resources)

    def _cost(self, block: Block, region: dict[str, Any], resources: list[str]) -> Cost:
        text = tuple(region["Instructions"])[:-1]
        operations = sum(each["NumMicroOpcodes"] for each in region["InstructionInfoView"]["InstructionList"]) - 1
        width = operations / self.core.width
        used: dict[str, list[float]] = {}  # by the units of one kind
        pressure = region["ResourcePressureView"]["ResourcePressureInfo"]
        of_all = {e["ResourceIndex"]: e["ResourceUsage"] for e in pressure if e["InstructionIndex"] == len(text) + 1}
        for index, name in enumerate(resources):
            used.setdefault(name.partition(".")[0], []).append(of_all.get(index, 0.0))
        ports = [sum(used[name]) / len(used[name]) for name in {*self.core.loads, *self.core.stores}]
        summary = region["SummaryView"]
        cycles = max(width, summary["BlockRThroughput"] - 1 / self.core.width)  # less the nop behind the block
        if block.is_loop:  # one round may wait for the one before
            cycles = max(cycles, summary["TotalCycles"] / summary["Iterations"])
        return Cost(cycles, max([width, *ports]), text)


def disassembled(words: Iterable[str]) -> list[str]:
    """Return a line for each word, empty where LLVM knows no instruction."""
    listed = "\n".join(" ".join(f"0x{byte:02x}" for byte in bytes.fromhex(word)[::-1]) for word in words)
    told = subprocess.run(
        ["llvm-mc-22", "--disassemble", "-triple=aarch64", "-mattr=+v8.4a,+fullfp16"],
        input=listed, text=True, capture_output=True,
    )  # fmt: skip
    unknown = {int(line) for line in re.findall(r"<stdin>:(\d+):\d+: warning: invalid instruction", told.stderr)}
    known = (line.strip() for line in told.stdout.splitlines() if line.startswith("\t") and not line.startswith("\t."))
    return ["" if number in unknown else next(known) for number in range(1, len(listed.splitlines()) + 1)]


CLASSES = {
    "loads": r"ld|prfm",
    "stores": r"st",
    "products": r"[us]dot|[us]?(q?d?mul|mla|mls|mlal|mull|mlsl)\w*|fm(la|ls|ul|add|sub|al)\w*|[us]mmla",
    "branches": r"b$|b\.|bl|br|ret|cbn?z|tbn?z",
}


def kind_of(line: str) -> str:
    """Return the class of an instruction: of CLASSES, "vector" or "scalar"."""
    operation, _, operands = line.partition("\t")
    for kind, pattern in CLASSES.items():
        if re.match(pattern, operation) and not (kind == "products" and not re.match(r"v\d", operands)):
            return kind
    return "vector" if re.match(r"[vqsdhb]\d", operands) else "scalar"


BRANCH = r".00101|01010100|.011010|.011011|1101011"  # how b and bl, b.cond, cbz, tbz, br and ret begin


def read_blocks(path: Path) -> list[tuple[int, Block]]:
    """Return how often each block was executed, the most instructions first."""
    rows = (line.split() for line in path.read_text().splitlines())
    return joined([(int(count), int(start, 16), tuple(words)) for count, start, *words in rows])


def joined(found: Iterable[tuple[int, int, tuple[str, ...]]]) -> list[tuple[int, Block]]:
    """Make blocks of counts, addresses and words.

    QEMU ends a block where a page ends, too. What it cut is joined, or a loop would count as none
    where it happens to lie on two pages.
    """
    rows = sorted(found, key=lambda row: (row[1], row[0]))
    at = {start: number for number, (_, start, _) in enumerate(rows)}  # of several the one that ran most
    counts, blocks = [count for count, _, _ in rows], dict[Block, int]()
    for number, (_, start, words) in enumerate(rows):  # by address: a beginning takes its part of the end's count first
        count = counts[number]
        while count > 0 and not re.match(BRANCH, f"{int(words[-1], 16):032b}"):
            if (rest := at.get(start + 4 * len(words))) is None:
                break
            counts[rest] -= count
            words += rows[rest][2]
        if count > 0:
            blocks[Block(words)] = blocks.get(Block(words), 0) + count
    return sorted(((count, block) for block, count in blocks.items()), key=lambda each: -each[0] * len(each[1].words))


def predicted(blocks: list[tuple[int, Block]], model: Model, top: int = 0) -> dict[str, Any]:
    """Return instructions by class and cycles of one measure."""
    total = sum(count * len(block.words) for count, block in blocks)
    taken, covered = [], 0
    for count, block in blocks:
        if covered >= ENOUGH * total:
            break
        taken.append((count, block))
        covered += count * len(block.words)
    model.learn([block for _, block in taken])
    costs = [(count, block, model.known[block]) for count, block in taken]
    by_class: dict[str, float] = {}
    for count, _, cost in costs:
        for line in cost.text:
            by_class[kind_of(line)] = by_class.get(kind_of(line), 0) + count * total / covered
    plain = [(n, cost) for n, block, cost in costs if not block.is_loop]
    rest = (total - covered) / max(1, sum(n * len(cost.text) for n, cost in plain))
    cycles, bound = (
        sum(n * getattr(cost, of) for n, _, cost in costs) + rest * sum(n * getattr(cost, of) for n, cost in plain)
        for of in ("cycles", "bound")
    )
    for count, block, cost in sorted(costs, key=lambda each: -each[0] * each[2].cycles)[:top]:
        share = count * cost.cycles / cycles
        what = f"{count} times {len(block.words)} instructions, {cost.cycles:.1f} cycles, least {cost.bound:.1f}"
        print(f"    {share:.1%} of cycles: {what}{', a loop' if block.is_loop else ''}")
        print("\n".join(f"        {line}" for line in cost.text[:80]))
    return {
        "instructions": total,
        "classes": {k: round(v) for k, v in sorted(by_class.items())},
        "cycles": round(cycles),
        "bound": round(bound),
    }


# The page.


def table(document: dict[str, Any]) -> str:
    """Return the tables of lab/results/pages/arm-cost.md."""
    parts = [part for key in CORES if (core := document["cores"].get(key)) for part in _of_core(CORES[key], core)]
    return "\n\n".join(parts)


def _of_core(core: Core, found: dict[str, Any]) -> list[str]:
    measures = found["measures"]
    head = ["", "instructions", "loads", "stores", "products", "predicted cycles", "fp32's / its"]
    steps = [
        [name, *_counts(row), f"{row['cycles'] / 1e6:.1f} M", f"{_rival(name, measures)['cycles'] / row['cycles']:.2f}"]
        for name, row in measures.items()
        if not name.startswith("codec/")
    ]
    values = found["values"]
    codec_head = ["", "instructions a value", "predicted cycles a value", "least", "predicted / least"]
    codecs = [
        [name.removeprefix("codec/").replace("/-", ""), f"{row['instructions'] / values:.2f}", f"{row['cycles'] / values:.2f}",
         f"{row['bound'] / values:.2f}", f"{row['cycles'] / row['bound']:.2f}"]
        for name, row in measures.items()
        if name.startswith("codec/")
    ]  # fmt: skip
    title = f"## {core.name} ({core.boards}), batch {found['batch']}, {values} values"
    made = [title, markdown(head, steps), markdown(codec_head, codecs)]
    if caches := {name: row["caches"] for name, row in measures.items() if "caches" in row}:
        rows = [[name, *(f"{n / 1e6:.2f} M" for n in (c["data"], c["data_misses"], c["l2_misses"])),
                 f"{c['data_misses'] / c['data']:.2%}"] for name, c in caches.items()]  # fmt: skip
        made.append(markdown(["", "data accesses", "L1 misses", "L2 misses", "L1 misses of accesses"], rows))
    return made


def _counts(row: dict[str, Any]) -> list[str]:
    wanted = [row["instructions"], *(row["classes"].get(kind, 0) for kind in ("loads", "stores", "products"))]
    return [f"{n / 1e6:.1f} M" for n in wanted]


def _rival(name: str, measures: dict[str, Any]) -> dict[str, Any]:
    kind, _, what = name.split("/")
    rival: dict[str, Any] = measures[f"{kind}/{'batchnorm' if kind == 'step' else 'fp32'}/{what}"]
    return rival


def markdown(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("core", choices=CORES)
    parser.add_argument("--measure", action="append", help="only these, such as step/int8-dw16/resnet20")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--values", type=int, default=65536, help="of a codec's tensor")
    parser.add_argument("--top", type=int, default=0, help="show so many of the dearest blocks")
    parser.add_argument("--caches", action="store_true", help="cache misses, too, which takes ten times as long")
    parser.add_argument("--again", action="store_true", help="predict from the counts that are there")
    parser.add_argument("--work", type=Path, default=ROOT / "build/arm")
    parser.add_argument("--out", type=Path, default=ROOT / "lab/results/pages/arm-cost.json")
    options = parser.parse_args()
    core, machine, measures = CORES[options.core], Machine(options.work), options.measure or list(MEASURES)
    folder = machine.work / options.core
    folder.mkdir(exist_ok=True)
    arguments = [str(options.batch), str(options.values), *measures]
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        sys.exit(f"{', '.join(missing)} not found: apt install {WITH_TOOLS} (Debian 12)")
    if not options.again:
        machine.prepare()
        print(machine.guest(core, f"{machine.work}/blocks.so,folder={folder}", folder, arguments))
    model, found = Model(core), dict[str, Any]()
    for number, name in enumerate(measures, 1):
        found[name] = predicted(read_blocks(folder / f"{number}.blocks"), model, options.top)
        print(
            f"{name}: {found[name]['instructions'] / 1e6:.1f} M instructions, {found[name]['cycles'] / 1e6:.1f} M cycles",
            flush=True,
        )
    if options.caches:
        machine.guest(core, f"{machine.work}/cache.so,{core.caches}", folder, arguments)
        for line in re.findall(r"^mark (.*)$", (folder / "plugin.log").read_text(), re.MULTILINE):
            number, *numbers = map(int, line.split())
            keys = ("data", "data_misses", "code", "code_misses", "l2", "l2_misses")
            found[measures[number - 1]]["caches"] = dict(zip(keys, numbers, strict=True))
    document = json.loads(options.out.read_text()) if options.out.exists() else {"cores": {}}
    here = document["cores"].setdefault(options.core, {"measures": {}})
    here |= {"batch": options.batch, "values": options.values, "measures": here["measures"] | found}
    source = {**result_source(), "machine": "Cortex-A72 and A76, emulated", "isa": "neon, dotprod"}
    document["sources"] = [source]
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
