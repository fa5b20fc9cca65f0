"""A base image for a kind of board, in steps that are done once each (docs/images.md). No names and
no keys: `configure` brings them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from edgegossip.files import expanded, refused_as
from edgegossip.fleet.image import (
    client,
    disk,
    filesystems,
    private_keys,
    rootfs,
    steps,
    tools,
    wheel,
)
from edgegossip.fleet.image.boards import CLIENTS, BoardKind, BuildFrom
from edgegossip.fleet.image.rootfs import Mirrors
from edgegossip.fleet.image.steps import Done, Echo, Step, tree_hash
from edgegossip.types import ConfigError, HostError, UsageError
from edgegossip.untrusted import whole_number
from edgegossip.update.bundle import LOCK
from edgegossip.version import VERSION

EPOCH = 1767225600  # 2026-01-01: the time of everything in an image, unless SOURCE_DATE_EPOCH says another
SITE = "opt/edgegossip/releases/{release}/site"
INSIDE = "/opt/edgegossip/current/site"  # where programs of the board find it
_MIB = 1 << 20
_LAST_SECOND = 2**32 - 1  # that FAT and ext4 of a card have a date for
_BOOT_BYTES = 256 * _MIB
NEEDS = ("mmdebstrap", "arch-test", "qemu-aarch64-static", "aarch64-linux-gnu-g++", "tar")
CARD_NEEDS = ("mkfs.vfat", "mmd", "mcopy", "mke2fs", "debugfs")
_METADATA = ("pyproject.toml", "README.md", "LICENSE")  # of which a wheel's metadata is made
_MODULES = ("nanobind", "cmake", "ninja", "scikit_build_core", "uv")


@dataclass(frozen=True, slots=True)
class Request:
    """Says what to build. `source` is a checkout of edgegossip: a wheel has neither the native
    sources nor deploy/."""

    board: BoardKind
    output: Path
    source: Path
    cache: Path
    mirrors: Mirrors
    epoch: int = EPOCH


@dataclass(frozen=True, slots=True)
class Built:
    """Holds the image, what it is, and what each step took."""

    image: Path
    about: Mapping[str, Any]
    steps: tuple[Done, ...]
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        done = [{"step": s.name, "seconds": s.seconds, "cached": s.cached} for s in self.steps]
        return {"image": str(self.image), **self.about, "steps": done, "seconds": self.seconds}


def build_image(asked: BuildFrom, output: Path, echo: Echo, *, fresh: bool = False) -> Built:
    """Make the image of a kind of board, with what it is beside it as IMAGE.json; `fresh` fetches
    Debian's packages again. Raises EdgegossipError."""
    start = time.monotonic()
    request = _request_of(asked, asked.kind(), output)
    if fresh:
        for old in (*request.cache.glob("debian-*"), *request.cache.glob("sysroot-*")):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    _check_machine(*CARD_NEEDS)
    done = steps.carry_out(plan(request), request.cache, echo)
    about = json.loads((done["card"].folder / "image.json").read_text())
    echo(f"writing {request.output}")
    place(done["card"].folder / "card.img", request.output, about)
    return Built(request.output, about, tuple(done.values()), time.monotonic() - start)


def build_wheel(asked: BuildFrom, output: Path, echo: Echo) -> Path:
    """Make our wheel for the Debian of a kind of board, in the folder `output`. Raises
    EdgegossipError."""
    request = _request_of(asked, asked.kind(CLIENTS), output)
    (made,) = _made(request, ("wheel",), echo)["wheel"].folder.glob("*.whl")
    with refused_as(HostError, output):
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(made, output / made.name))


def build_release(asked: BuildFrom, output: Path, echo: Echo, *, with_packages: bool = False) -> Path:
    """Make our package as a board of that kind has it, and the list of packages that it needs, in
    the new folder `output`; on request with these packages. Raises EdgegossipError."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already: name a new folder, as all that is in it becomes the release")
    request = _request_of(asked, asked.kind(CLIENTS), output)
    layers = ("packages", "release") if with_packages else ("release",)
    done = _made(request, layers, echo)
    aside = output.with_name(f".{output.name}.part")
    try:
        with refused_as(HostError, output):
            shutil.rmtree(aside, ignore_errors=True)
            for layer in layers:
                shutil.copytree(done[layer].folder / "site", aside, dirs_exist_ok=True)
            shutil.copyfile(client.lock_file(request.source, request.board.debian), aside / LOCK)
            tools.run(["chmod", "--recursive", "a+rX", aside], 600)  # made with sudo, read without
            aside.rename(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return output


def _made(request: Request, names: Sequence[str], echo: Echo) -> dict[str, Done]:
    """Carry out these steps of a build, and those that they need."""
    _check_machine()
    every = {step.name: step for step in plan(request)}
    wanted, left = set[str](), list(names)
    while left:
        step = every[left.pop()]
        wanted.add(step.name)
        left.extend(step.needs)
    return steps.carry_out([step for step in every.values() if step.name in wanted], request.cache, echo)


def _request_of(asked: BuildFrom, board: BoardKind, output: Path) -> Request:
    """Complete what the command line left out. Raises EdgegossipError."""
    mirrors = rootfs.parse_mirrors(asked.mirror) if asked.mirror else rootfs.apt_mirrors()
    cache = asked.cache or Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache")) / "edgegossip" / "images"
    return Request(board, output, source_of(asked.source), cache, mirrors, epoch())


def source_of(folder: Path | None) -> Path:
    """Find the checkout: `folder`, or the one that this package runs from. Raises UsageError."""
    found = (folder or Path(__file__).parents[3]).absolute()
    wanted = ("pyproject.toml", "CMakeLists.txt", "edgegossip/native/src", "deploy/rootfs", "deploy/locks")
    missing = [name for name in wanted if not (found / name).exists()]
    if missing:
        raise UsageError(f"{found} has no {missing[0]}: name a checkout of edgegossip with --source")
    return found


def epoch() -> int:
    """Return SOURCE_DATE_EPOCH, or the project's own. Raises UsageError."""
    text = os.environ.get("SOURCE_DATE_EPOCH", str(EPOCH))
    seconds = whole_number(text, _LAST_SECOND)
    if seconds is None:
        raise UsageError(f"SOURCE_DATE_EPOCH={text}: it must be a number of seconds since 1970")
    return seconds


def _check_machine(*programs: str) -> None:
    """Raise HostError that names all that this machine lacks, and of these programs."""
    tools.need(*NEEDS, *programs)
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise HostError(f"this needs {', '.join(missing)}: pip install {' '.join(missing)}")
    if os.geteuid():
        again = tools.with_sudo("image ... --cache DIR")
        raise HostError(f"building a root file system needs root, for the owners of its files: say it again as {again}")


def plan(request: Request) -> tuple[Step, ...]:
    """Lay out the steps, and all that each depends on."""
    board, source, at = request.board, request.source, request.epoch
    debian, mirrors = board.debian, request.mirrors
    lock = client.lock_file(source, debian)
    release = release_name(source, lock)
    about = {"board": board.name, "debian": debian.version, "python": debian.python, "release": release, "epoch": at}
    native = [tree_hash(source / "edgegossip/native/src"), _digest(source / "CMakeLists.txt"), tree_hash(wheel.CROSS)]
    at_hand = {"compiler": _compiler(), "nanobind": version("nanobind")}
    emulating = () if client.has_same_python(debian) else ("debian",)
    this = sys.modules[__name__]
    return (
        Step("debian", f"Debian {debian.version} ({debian.suite})", rootfs.inputs(debian, mirrors, at),
             lambda folder, _: rootfs.bootstrap(debian, mirrors, at, folder)),
        Step("sysroot", "headers and C library for the compiler", rootfs.sysroot_inputs(debian, mirrors, at),
             lambda folder, _: rootfs.sysroot(debian, mirrors, at, folder)),
        Step("native", "native module for aarch64",
             {"sources": native, "python": debian.python, "by": at_hand, "code": _code(wheel)},
             lambda folder, made: _native(source, made["sysroot"], board, folder), ("sysroot",)),
        Step("wheel", f"wheel of release {release}", {"release": release, "code": _code(wheel), "at": at},
             lambda folder, made: _wheel(request, made["native"], folder, release), ("native",)),
        Step("packages", f"Python packages of {lock.name}", {"lock": _digest(lock), "code": _code(client)},
             lambda folder, made: _packages(request, lock, made, folder), emulating),
        Step("release", f"release {release}", {"code": _code(client)},
             lambda folder, made: _release(request, made, folder), ("wheel", *emulating)),
        Step("tree", "files of the board",
             {"about": about, "deploy": tree_hash(source / "deploy/rootfs"), "code": _code(rootfs, private_keys, this)},
             lambda folder, made: _tree(request, made, folder, about), ("debian", "packages", "release")),
        Step("card", "card image", {"code": _code(disk, filesystems), "at": at},
             lambda folder, made: _card(made["tree"], folder, at), ("tree",)),
    )  # fmt: skip


def _code(*modules: ModuleType) -> list[str]:
    """Return what the outcome of a step depends on besides its inputs: the program that does it."""
    return [_digest(Path(module.__file__ or "")) for module in modules]


def release_name(source: Path, lock: Path) -> str:
    """Name a release after its version and eight digits of all that is in it, so that another build
    of other files has another name."""
    total = hashlib.sha256(_digest(lock).encode() + tree_hash(source / "edgegossip/native/src").encode())
    total.update(tree_hash(source, *_METADATA).encode())
    for inside, path in wheel.package_files(source):
        total.update(f"{inside} {_digest(path)}\n".encode())
    return f"{VERSION}-{total.hexdigest()[:8]}"


def place(card: Path, output: Path, about: Mapping[str, Any]) -> None:
    """Put a made image where the user wants it, whole or not at all, with its description beside
    it. Raises HostError."""
    aside = output.with_name(f".{output.name}.part")
    try:
        with refused_as(HostError, output):
            output.parent.mkdir(parents=True, exist_ok=True)
            disk.copy_sparse(card, aside)
            aside.rename(output)
            description(output).write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    finally:
        aside.unlink(missing_ok=True)


def description(image: Path) -> Path:
    """Name the file beside an image that says what it is."""
    return image.with_name(f"{image.name}.json")


def _native(source: Path, sysroot: Path, board: BoardKind, folder: Path) -> None:
    wheel.compile_native(source, sysroot, board.debian, folder)
    shutil.rmtree(folder / "build")


def _wheel(request: Request, native_folder: Path, folder: Path, release: str) -> None:
    """Raises UsageError when somebody changes the checkout meanwhile: the wheel would not be what
    its name says."""
    debian = request.board.debian
    (native,) = native_folder.glob("_native*.so")
    platform = wheel.platform_tag(wheel.needed_glibc(native, debian.glibc))
    wheel.make(request.source, native, debian, folder, request.epoch, platform)
    if release_name(request.source, client.lock_file(request.source, debian)) != release:
        raise UsageError(f"{request.source} changed while it was packed: say it again")


def _packages(request: Request, lock: Path, made: Mapping[str, Path], folder: Path) -> None:
    client.install(lock, request.board.debian, folder / "site", folder / "install.log")
    _compile(request, made, folder)


def _release(request: Request, made: Mapping[str, Path], folder: Path) -> None:
    (file,) = made["wheel"].glob("*.whl")
    client.unpack(file, folder / "site")
    _compile(request, made, folder)


def _compile(request: Request, made: Mapping[str, Path], folder: Path) -> None:
    """Compile site/, in the tree of a board where its Python must be emulated."""
    root = folder / "root"
    if "debian" in made:
        rootfs.extract(made["debian"] / "rootfs.tar", root)
    by = client.precompile(folder / "site", request.board.debian, root, INSIDE, folder / "compile.log")
    (folder / "compiled-by").write_text(f"{by}\n")
    shutil.rmtree(root, ignore_errors=True)


def _tree(request: Request, made: Mapping[str, Path], folder: Path, about: Mapping[str, Any]) -> None:
    root, boot = folder / "root", folder / "boot"
    rootfs.extract(made["debian"] / "rootfs.tar", root)
    rootfs.settle(root, boot)
    units = rootfs.overlay(request.source / "deploy/rootfs", root)
    site = root / SITE.format(release=about["release"])
    site.parent.mkdir(parents=True)
    tools.run(["cp", "--recursive", "--preserve=timestamps,links,mode", made["packages"] / "site", site], 600)
    tools.run(["cp", "--recursive", "--preserve=timestamps,links,mode", f"{made['release']}/site/.", site], 600)
    tools.run(["chmod", "--recursive", "u=rwX,go=rX", root / "opt"], 600)  # whatever this machine's umask
    (root / "opt/edgegossip/current").symlink_to(f"releases/{about['release']}")
    whole = {**about, "units": units, "packages": dict(sorted(rootfs.packages(root)))}
    whole["library_keys"] = private_keys.of_libraries(root)
    rootfs.say_what_it_is(root, whole)
    (folder / "image.json").write_text(json.dumps(whole))


def _card(tree: Path, folder: Path, at: int) -> None:
    card = folder / "card.img"
    made = disk.assemble(tree / "boot", tree / "root", card, _BOOT_BYTES, at)
    about = json.loads((tree / "image.json").read_text())
    about |= {"sha256": disk.sha256(card), "size": card.stat().st_size, "partitions": [asdict(p) for p in made]}
    (folder / "image.json").write_text(json.dumps(about))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _compiler() -> str:
    version = tools.run(["aarch64-linux-gnu-g++", "--version"], 60) if tools.find("aarch64-linux-gnu-g++") else "\n"
    return version.splitlines()[0]
