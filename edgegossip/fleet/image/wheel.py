"""Our own wheel for a board: the package's files and the native module, cross-compiled here.
Nothing of the board's runs.

The compiler works against headers and C library of the board's own Debian, so that the module loads
there. The same sources and compiler give the same wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgegossip.fleet.image.boards import Debian
from edgegossip.fleet.image.tools import run
from edgegossip.types import HostError

CROSS = Path(__file__).parent / "cross"
_BUILD_S, _METADATA_S = 1800.0, 120.0
_METADATA = "import sys; from scikit_build_core import build; build.prepare_metadata_for_build_wheel(sys.argv[1])"
_ABI3_SINCE = (3, 12)
OBJDUMP = "aarch64-linux-gnu-objdump"
_FIRST = (2, 17)  # of aarch64
# What every system has that the tag admits; anything else would have to come along.
_LIBRARIES = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d|libgcc_s\.so\.1|ld-linux-aarch64\.so\.1")


def compile_native(source: Path, sysroot: Path, debian: Debian, folder: Path) -> Path:
    """Compile `_native` for a board's Python, in `folder`; its CMake files are those of every
    build. Raises HostError."""
    import nanobind

    build, log = folder / "build", folder / "compile.log"
    defined = {
        "CMAKE_TOOLCHAIN_FILE": CROSS / "toolchain.cmake",
        "CMAKE_BUILD_TYPE": "Release",
        "EDGEGOSSIP_SYSROOT": sysroot,
        "EDGEGOSSIP_SOURCE": source,
        "EDGEGOSSIP_PYTHON": debian.python,
        "EDGEGOSSIP_HOST_PYTHON": sys.executable,
        "nanobind_DIR": nanobind.cmake_dir(),
    }
    cmake = [sys.executable, "-m", "cmake"]  # of this Python's environment, which may not be on PATH
    env = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}  # for its ninja
    set_up: list[str | Path] = [*cmake, "-G", "Ninja", "-S", source, "-B", build]
    run([*set_up, *(f"-D{k}={v}" for k, v in defined.items())], _BUILD_S, env=env, log=log)
    run([*cmake, "--build", build], _BUILD_S, env=env, log=log)
    (module,) = build.glob("_native*.so")
    return module.rename(folder / module.name)


def tag(debian: Debian, platform: str) -> str:
    """Return the tag of the wheel's name: pyproject.toml's `wheel.py-api` says from which Python on
    one wheel serves all later ones."""
    major, minor = map(int, debian.python.split("."))
    python = f"cp{major}{minor}"
    if (major, minor) >= _ABI3_SINCE:
        return f"cp{_ABI3_SINCE[0]}{_ABI3_SINCE[1]}-abi3-{platform}"
    return f"{python}-{python}-{platform}"


def package_files(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield what a wheel carries, as pyproject.toml and CMakeLists.txt have it: the package without
    sources of the native module, and the profiles of boards."""
    package = source / "edgegossip"
    for path in sorted(package.rglob("*")):
        inside = path.relative_to(source)
        compiled = "__pycache__" in inside.parts or path.suffix in (".so", ".pyc")
        if path.is_file() and not compiled and inside.parts[:3] != ("edgegossip", "native", "src"):
            yield inside.as_posix(), path
    for path in sorted((source / "devices").rglob("*.toml")):
        yield f"edgegossip/{path.relative_to(source).as_posix()}", path


def make(source: Path, native: Path, debian: Debian, folder: Path, epoch: int, platform: str) -> Path:
    """Make the wheel, in `folder`; `platform` is what its name says of where the module loads
    (`platform_tag`). Raises HostError."""
    metadata = _metadata(source, folder)
    tags = tag(debian, platform)
    name, version = (_field(metadata, field) for field in ("Name", "Version"))
    about = f"{name}-{version}.dist-info"
    held = {inside: path.read_bytes() for inside, path in package_files(source)}
    held[f"edgegossip/native/{native.name}"] = native.read_bytes()
    held[f"{about}/METADATA"] = metadata.encode()
    lines = ["Wheel-Version: 1.0", "Generator: edgegossip image build", "Root-Is-Purelib: false", f"Tag: {tags}"]
    held[f"{about}/WHEEL"] = ("\n".join(lines) + "\n").encode()
    held[f"{about}/entry_points.txt"] = b"[console_scripts]\nedgegossip = edgegossip.cli.main:main\n"
    held[f"{about}/RECORD"] = _record(held, f"{about}/RECORD")
    wheel = folder / f"{name}-{version}-{tags}.whl"
    at = time.gmtime(max(epoch, 315532800))[:6]  # zip files know no time before 1980
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, data in held.items():
            entry = zipfile.ZipInfo(inside, at)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, data)
    return wheel


def _metadata(source: Path, folder: Path) -> str:
    """Return the text that any other build of this source would have. Raises HostError."""
    place = folder / "metadata"
    place.mkdir()
    run([sys.executable, "-c", _METADATA, place], _METADATA_S, cwd=source)
    (file,) = place.glob("*.dist-info/METADATA")
    return file.read_text()


def _field(metadata: str, field: str) -> str:
    for line in metadata.splitlines():
        if line.startswith(f"{field}: "):
            return line.partition(": ")[2].strip()
    raise HostError(f"the package's metadata has no {field}: is this a whole checkout?")


def _record(held: Mapping[str, bytes], own: str) -> bytes:
    """Write RECORD of the binary distribution format: name, digest and size of each file, and none
    for itself."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for inside, data in held.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((inside, f"sha256={digest}", len(data)))
    rows.writerow((own, "", ""))
    return text.getvalue().encode()


def needed_glibc(module: Path, newest: tuple[int, int]) -> tuple[int, int]:
    """Return the C library that it needs at least. Raises HostError when that is newer than
    `newest`, or it needs other libraries."""
    libraries, versions = _parse_dynamic_section(run([OBJDUMP, "-p", module], 60))
    if other := [name for name in libraries if not _LIBRARIES.fullmatch(name)]:
        raise HostError(f"{module.name} needs {', '.join(other)}, which boards may not have: see cross/toolchain.cmake")
    found = max(versions, default=_FIRST)
    if found > newest:
        raise HostError(
            f"{module.name} needs glibc {_text(found)}, and must load with {_text(newest)}: see cross/toolchain.cmake"
        )
    return max(found, _FIRST)


def _parse_dynamic_section(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Read what `objdump -p` prints: the libraries, and the versions of glibc's symbols. Pure."""
    libraries = re.findall(r"^\s+NEEDED\s+(\S+)", text, re.MULTILINE)
    versions = [(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", text)]
    return libraries, versions


def platform_tag(glibc: tuple[int, int]) -> str:
    """Return the platform of a wheel's name."""
    return f"manylinux_{glibc[0]}_{glibc[1]}_aarch64"


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
