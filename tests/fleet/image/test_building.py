"""What goes into an image, before any of it is built: boards, mirrors, files of the tree, the
wheel, what a machine lacks."""

import base64
import configparser
import csv
import hashlib
import io
import os
import py_compile
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from edgegossip.fleet.image import (
    build,
    client,
    disk,
    filesystems,
    private_keys,
    rootfs,
    steps,
    tools,
    wheel,
)
from edgegossip.fleet.image.boards import BOARDS, BOOKWORM, CLIENTS, TRIXIE, BuildFrom
from edgegossip.fleet.image.rootfs import Mirrors
from edgegossip.types import ConfigError, DataError, HostError, UsageError

ROOT = Path(__file__).parents[3]
APT = """http://deb.example/debian/|Debian
http://deb.example/debian/|Debian
http://deb.example/security/|Debian-Security
https://node.example/|nodesource
"""


def kind(board, suite="", known=BOARDS):
    return BuildFrom(board=board, suite=suite).kind(known)


def test_boards():
    assert kind("raspberry-pi-4").debian is BOOKWORM and kind("raspberry-pi-5").debian is TRIXIE
    assert kind("raspberry-pi-4", "trixie").debian is TRIXIE
    assert kind("jetson-orin-nano", known=CLIENTS).debian is TRIXIE  # JetPack 7.2, or on request 6
    assert kind("jetson-orin-nano", "bookworm", CLIENTS).debian is BOOKWORM
    with pytest.raises(ConfigError, match="did you mean raspberry-pi-4"):
        kind("raspbery-pi-4")
    with pytest.raises(ConfigError, match="--board jetson-orin-nano: nothing is built for it"):
        kind("jetson-orin-nano")
    with pytest.raises(ConfigError, match="--suite bookworm: no image of raspberry-pi-5 has it: one of trixie"):
        kind("raspberry-pi-5", "bookworm")
    for board in BOARDS.values():
        for debian in board.debians:
            assert client.lock_file(ROOT, debian).read_text().count("torch==2.9.1") == 1
    with pytest.raises(DataError, match="lock_boards"):
        client.lock_file(ROOT / "docs", BOOKWORM)


def test_locks_have_all_that_a_board_imports_and_a_hash_for_each():
    for debian in (BOOKWORM, TRIXIE):
        text = client.lock_file(ROOT, debian).read_text()
        blocks = [block for block in text.split("\n") if block and not block.startswith(("#", " "))]
        names = {block.split("==")[0] for block in blocks}
        assert {
            "numpy",
            "grpcio",
            "protobuf",
            "psutil",
            "click",
            "tomli-w",
            "zstandard",
            "setproctitle",
            "flwr",
        } <= names
        assert all(block.endswith("\\") for block in blocks), "a package without a hash"
        assert not [name for name in names if name.startswith("nvidia")], "a board has no CUDA"


def test_packages_come_from_where_this_machines_apt_has_them():
    mirrors = rootfs.index_mirrors(APT.splitlines())
    assert mirrors == Mirrors("http://deb.example/debian/", "http://deb.example/security/")
    assert rootfs.deb_lines(mirrors, TRIXIE) == (
        "deb http://deb.example/debian/ trixie main non-free-firmware",
        "deb http://deb.example/debian/ trixie-updates main non-free-firmware",
        "deb http://deb.example/security/ trixie-security main non-free-firmware",
    )
    with pytest.raises(HostError, match="--mirror"):
        rootfs.index_mirrors(["https://node.example/|nodesource"])


def test_a_mirror_that_the_user_names():
    assert rootfs.parse_mirrors("http://a/debian") == Mirrors("http://a/debian", "")
    assert rootfs.parse_mirrors("file:/a,https://b") == Mirrors("file:/a", "https://b")
    for wrong in ("deb.example", "http://a,b", ""):
        with pytest.raises(HostError, match="write ADDRESS"):
            rootfs.parse_mirrors(wrong)


def test_nothing_of_this_machine_and_no_key_stays_in_the_tree(tmp_path):
    root, boot = tmp_path / "root", tmp_path / "boot"
    rootfs.write_files(
        root,
        {
            "boot/firmware/config.txt": "x",
            "etc/hostname": "laptop\n",
            "etc/machine-id": "abc\n",
            "etc/ssh/ssh_host_rsa_key": "secret",
            "etc/ssh/sshd_config": "x",
            "etc/resolv.conf": "nameserver 10.9.8.7",
            "etc/apt/sources.list": "deb http://me:password@mirror.example/debian bookworm main\n",
            "root/.ssh/authorized_keys": "x",
            "var/log/dpkg.log": "x",
            "etc/systemd/system/other": "x",
        },
    )
    rootfs.settle(root, boot)
    assert (boot / "config.txt").exists() and not list((root / "boot/firmware").iterdir())
    assert (root / "etc/hostname").read_text() == "edgegossip\n" and (root / "etc/machine-id").read_text() == ""
    assert {path.name for path in (root / "etc/ssh").iterdir()} == {"sshd_config"}
    assert not (root / "root/.ssh").exists() and not (root / "var/log/dpkg.log").exists()
    assert (root / "etc/apt/sources.list").read_text() == "deb http://mirror.example/debian bookworm main\n"
    assert os.readlink(root / "etc/resolv.conf") == "../run/systemd/resolve/stub-resolv.conf"
    assert os.readlink(root / "etc/systemd/system/e2scrub_all.timer") == "/dev/null"
    assert not (root / "etc/systemd/system/apt-daily.timer").is_symlink(), "security updates come by themselves"


def test_a_board_hashes_no_source_of_pythons_own_modules(tmp_path):
    module = tmp_path / "python3.11/json/tool.py"
    module.parent.mkdir(parents=True)
    module.write_text("here = 1\n")
    compiled = Path(py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH))
    whole = compiled.read_bytes()
    rootfs.trust_compiled(tmp_path)
    assert compiled.read_bytes() == whole[:4] + b"\1\0\0\0" + whole[8:]
    by_time = Path(py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP))
    whole = by_time.read_bytes()
    rootfs.trust_compiled(tmp_path)
    assert by_time.read_bytes() == whole


def test_our_own_files_go_over_it(tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "usr").mkdir()
    units = rootfs.overlay(ROOT / "deploy/rootfs", root)
    assert {"edgegossip-firstboot.service", "edgegossip-node.service"} <= set(units)
    for unit in units:
        assert (root / "etc/systemd/system" / unit).is_file(), f"{unit} is switched on and not there"
    assert (root / "usr/lib/edgegossip/firstboot.py").stat().st_mode & 0o777 == 0o644
    rootfs.overlay(ROOT / "deploy/rootfs", root)  # once more is the same


def test_what_a_shell_reads_while_packages_configure_themselves(tmp_path):
    """raspi-firmware's hook sources its settings with `set -e`: a word too many, and no kernel can
    be installed."""
    rootfs.write_files(tmp_path, rootfs.files_before_packages())
    script = '. "$1"; echo "$ROOTPART|$CONSOLES|$KERNEL"'
    said = tools.run(["sh", "-ec", script, "sh", tmp_path / "etc/default/raspi-firmware"], 20)
    assert said == "LABEL=RASPIROOT|ttyS1,115200 tty0|auto\n"


def test_packages_of_a_tree(tmp_path):
    first = "Package: a\nStatus: install ok installed\nVersion: 1-2\n"
    gone = ("deinstall ok config-files", "unknown ok not-installed", "install reinstreq half-installed")
    status = "\n".join([first, *(f"Package: b{k}\nStatus: {how}\nVersion: 3\n" for k, how in enumerate(gone))])
    rootfs.write_files(tmp_path, {"var/lib/dpkg/status": status})
    assert dict(rootfs.packages(tmp_path)) == {"a": "1-2"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Our wheel around a native module that is none, made twice."""
    folder = tmp_path_factory.mktemp("wheel")
    native = folder / "_native.cpython-311-aarch64-linux-gnu.so"
    native.write_bytes(b"\x7fELF")
    wheels = []
    for name in ("one", "two"):
        (folder / name).mkdir()
        wheels.append(wheel.make(ROOT, native, BOOKWORM, folder / name, build.EPOCH, "manylinux_2_34_aarch64"))
    return wheels


def test_the_wheel_is_whole(made):
    assert made[0].name.endswith("-cp311-cp311-manylinux_2_34_aarch64.whl")
    archive = zipfile.ZipFile(made[0])
    (record,) = (name for name in archive.namelist() if name.endswith("/RECORD"))
    rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    assert sorted(row[0] for row in rows) == sorted(archive.namelist())
    for name, digest, size in rows:
        if name != record:
            data = archive.read(name)
            told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={told}", len(data)), name
    names = set(archive.namelist())
    assert {"edgegossip/cli/main.py", "edgegossip/py.typed", "edgegossip/recipes/quickstart-server.toml"} <= names
    assert {"edgegossip/devices/raspberry-pi-4.toml", "edgegossip/devices/fleets/pi4-wifi.toml"} <= names
    assert [n for n in names if n.endswith(".so")] == ["edgegossip/native/_native.cpython-311-aarch64-linux-gnu.so"]
    assert not [n for n in names if "native/src" in n or n.endswith(".pyc")]
    assert "Requires-Dist: numpy" in archive.read(record.replace("RECORD", "METADATA")).decode()


def test_the_same_sources_give_the_same_wheel(made):
    assert made[0].read_bytes() == made[1].read_bytes()


def test_tags():
    assert wheel.tag(BOOKWORM, "x") == "cp311-cp311-x"
    assert wheel.tag(TRIXIE, "x") == "cp312-abi3-x"  # pyproject.toml, wheel.py-api


# `aarch64-linux-gnu-objdump -p` of the module, linked without and with what cross/toolchain.cmake
# says
NEEDS_NEWER = """
  NEEDED               libm.so.6
  NEEDED               libc.so.6
  required from libm.so.6:
    0x06969189 0x00 08 GLIBC_2.29
  required from libc.so.6:
    0x069691b2 0x00 07 GLIBC_2.35
    0x069691b2 0x00 06 GLIBC_2.4
    0x069691b6 0x00 04 GLIBC_2.36
"""
NEEDS_LITTLE = """
  NEEDED               libgcc_s.so.1
  NEEDED               libc.so.6
  required from libgcc_s.so.1:
    0x09276060 0x00 10 GCC_4.2.0
  required from libc.so.6:
    0x06969198 0x00 09 GLIBC_2.18
    0x069691b4 0x00 02 GLIBC_2.34
"""


def test_a_module_must_load_where_its_wheel_goes(monkeypatch):
    """JetPack 6 has glibc 2.35, and takes the wheel of Debian 12, which has 2.36."""
    module = Path("_native.so")
    monkeypatch.setattr(wheel, "run", lambda *_: NEEDS_NEWER)
    with pytest.raises(HostError, match="_native.so needs glibc 2.36, and must load with 2.35"):
        wheel.needed_glibc(module, BOOKWORM.glibc)
    assert wheel.needed_glibc(module, TRIXIE.glibc) == (2, 36)
    monkeypatch.setattr(wheel, "run", lambda *_: NEEDS_LITTLE)
    assert wheel.platform_tag(wheel.needed_glibc(module, BOOKWORM.glibc)) == "manylinux_2_34_aarch64"
    monkeypatch.setattr(wheel, "run", lambda *_: "  NEEDED               libstdc++.so.6\n")
    with pytest.raises(HostError, match="needs libstdc"):
        wheel.needed_glibc(module, BOOKWORM.glibc)
    monkeypatch.setattr(wheel, "run", lambda *_: "  NEEDED               libc.so.6\n")
    assert wheel.needed_glibc(module, BOOKWORM.glibc) == (2, 17), "of which aarch64's first has all symbols"


def test_a_release_is_named_after_all_that_is_in_it(tmp_path):
    for name in ("edgegossip/native/src", "devices", "deploy/locks"):
        (tmp_path / name).mkdir(parents=True)
    lock = tmp_path / "deploy/locks/lock.txt"
    lock.write_text("a==1")
    names = {build.release_name(tmp_path, lock)}
    for change in (
        "edgegossip/a.py",
        "edgegossip/native/src/a.cpp",
        "devices/a.toml",
        "deploy/locks/lock.txt",
        "pyproject.toml",
        "README.md",
    ):
        (tmp_path / change).write_text("x")
        names.add(build.release_name(tmp_path, lock))
    assert len(names) == 7


@pytest.fixture
def keys(tmp_path):
    """What gives the steps' keys of a checkout with few files."""
    for name in ("edgegossip/native/src", "deploy/locks", "deploy/rootfs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("CMakeLists.txt", "pyproject.toml", f"deploy/locks/{BOOKWORM.lock}"):
        (tmp_path / name).write_text("x")
    request = build.Request(BOARDS["raspberry-pi-4"], tmp_path, tmp_path, tmp_path, Mirrors("http://a", ""))
    return lambda: steps.keys(build.plan(request))


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("pyproject.toml", "wheel"),
        ("edgegossip/a.py", "wheel"),
        ("edgegossip/native/src/a.cpp", "native"),
        ("CMakeLists.txt", "native"),
        (f"deploy/locks/{BOOKWORM.lock}", "packages"),
        ("deploy/rootfs/etc", "tree"),
    ],
)
def test_a_change_of_a_file_is_built(keys, tmp_path, file, first):
    before = keys()
    (tmp_path / file).write_text("another")
    assert {first, "card"} <= changed(before, keys())


@pytest.mark.parametrize(
    ("module", "first"),
    [(wheel, "native"), (client, "packages"), (rootfs, "tree"), (build, "tree"), (private_keys, "tree"), (filesystems, "card"),
     (disk, "card")],
)  # fmt: skip
def test_a_change_of_the_program_is_built(keys, tmp_path, monkeypatch, module, first):
    before = keys()
    (tmp_path / "other.py").write_text("another")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "other.py"))
    assert {first, "card"} <= changed(before, keys())


@pytest.mark.parametrize("part", ["_DPKG", "_DOCS", "PACKAGES", "UNITS", "MODULES"])
def test_another_debian_is_built(keys, monkeypatch, part):
    """Each of mmdebstrap's options is in the key, as the whole of its command is."""
    before = keys()
    monkeypatch.setattr(rootfs, part, (*getattr(rootfs, part), "another"))
    assert "debian" in changed(before, keys())
    command = rootfs.inputs(BOOKWORM, Mirrors("http://a", ""), 0)["command"]
    assert "--variant=minbase" in command and any("systemctl enable" in word for word in command)


def test_a_card_is_trimmed_and_the_log_stays_off_it(tmp_path):
    command = rootfs.inputs(BOOKWORM, Mirrors("http://a", ""), 0)["command"]
    (enabled,) = (word for word in command if "systemctl enable" in word)
    assert "fstrim.timer" in enabled.split()
    rootfs.write_files(tmp_path, {"etc/systemd/system/other": "x", "boot/firmware/config.txt": "x", "usr/lib/x": "x"})
    rootfs.settle(tmp_path, tmp_path.with_name("boot"))
    rootfs.overlay(ROOT / "deploy/rootfs", tmp_path)
    assert re.search(r"^LABEL=\S+ / ext4 rw,noatime ", (tmp_path / "etc/fstab").read_text(), re.MULTILINE)
    journal = configparser.ConfigParser()
    journal.read(tmp_path / "etc/systemd/journald.conf.d/60-edgegossip.conf")
    assert dict(journal["Journal"]) == {"storage": "volatile", "runtimemaxuse": "16M"}


def test_each_program_that_a_build_needs_has_its_package():
    assert {tools.PACKAGES.get(program) for program in (*build.NEEDS, *build.CARD_NEEDS)} == {
        *("mmdebstrap", "arch-test", "qemu-user-static", "g++-aarch64-linux-gnu", "dosfstools", "mtools"),
        *("e2fsprogs", "tar"),
    }
    page = (ROOT / "docs" / "images.md").read_text()
    assert all(tools.PACKAGES[program] in page for program in (*build.NEEDS, *build.CARD_NEEDS))


def test_cmake_is_found_where_it_is_not_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "find", lambda program: program if Path(program).is_absolute() else None)
    with pytest.raises(HostError, match="does not appear to contain CMakeLists"):
        wheel.compile_native(tmp_path, tmp_path, BOOKWORM, tmp_path)


def test_a_wheel_needs_no_program_that_makes_cards(monkeypatch, tmp_path):
    monkeypatch.setattr(tools, "find", lambda program: None if program in build.CARD_NEEDS else f"/bin/{program}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    asked = BuildFrom(board="raspberry-pi-4", mirror="http://mirror.test", cache=tmp_path)
    with pytest.raises(HostError, match="needs mkfs.vfat, mmd, mcopy, mke2fs, debugfs: apt install dosfstools e2fs"):
        build.build_image(asked, tmp_path / "out", print)
    with pytest.raises(HostError, match="needs root"):
        build.build_wheel(asked, tmp_path / "out", print)


def test_only_a_checkout_can_be_built(tmp_path):
    assert build.source_of(None) == ROOT
    with pytest.raises(UsageError, match="has no pyproject.toml: name a checkout"):
        build.source_of(tmp_path)


@pytest.mark.parametrize("said", ["yesterday", "", "-1", "²", "9" * 5000, "1e9"])
def test_seconds_that_are_none(said, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", said)
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        build.epoch()


def test_seconds_of_an_image(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert build.epoch() == 12


@pytest.mark.parametrize(
    "merged", [False, True], ids=["Debian 12 has ./lib", "Debian 13 has a link of another package"]
)
def test_headers_lie_where_linker_scripts_say(tmp_path, merged):
    library = "usr/lib/aarch64-linux-gnu/libc.so.6" if merged else "lib/aarch64-linux-gnu/libc.so.6"
    with tarfile.open(tmp_path / "sysroot.tar", "w") as tar:
        for name in ("./usr/include/stdio.h", f"./{library}", "./dev/null"):
            about = tarfile.TarInfo(name)
            about.size = 1
            tar.addfile(about, io.BytesIO(b"x"))
    folder = tmp_path / "headers"
    folder.mkdir()
    rootfs.extract_headers(tmp_path / "sysroot.tar", folder)
    assert (folder / "lib/aarch64-linux-gnu/libc.so.6").read_bytes() == b"x"
    assert (folder / "usr/include/stdio.h").exists() and not (folder / "dev/null").exists()


def test_a_board_knows_which_packages_it_has(tmp_path, monkeypatch):
    """Updates go by that list: they bring our package only where it is the one that they were built
    with."""
    site, lock = tmp_path / "site", client.lock_file(ROOT, BOOKWORM)
    monkeypatch.setattr(client, "run", lambda *_, **__: (site / "numpy").mkdir(parents=True))
    client.install(lock, BOOKWORM, site, tmp_path / "log")
    assert (site / "packages.lock").read_bytes() == lock.read_bytes()


def test_a_file_of_the_image_takes_the_place_of_a_link_to_this_machine(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "own").write_text("this machine's")
    (tmp_path / "etc/hosts").symlink_to(tmp_path / "own")
    rootfs.write_files(tmp_path, {"etc/hosts": "the image's"})
    assert (tmp_path / "own").read_text() == "this machine's"
