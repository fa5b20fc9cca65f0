"""Cards made of small folders: the same files give the same bytes, a bundle goes in, and what is
wrong with an image is found."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from edgegossip.fleet import kitfile, orders, provisioning
from edgegossip.fleet.image import configure, disk, rootfs, verify
from edgegossip.fleet.image.build import description, place
from edgegossip.fleet.image.disk import FAT32_LBA, LINUX
from edgegossip.fleet.image.filesystems import ext4_names, fat_files, make_fat, put_in_fat
from edgegossip.fleet.image.private_keys import of_libraries
from edgegossip.fleet.image.steps import Step, carry_out
from edgegossip.fleet.image.tools import find, run
from edgegossip.fleet.store import Fleet
from edgegossip.types import ConfigError, DataError

MIB, EPOCH = 1 << 20, 1767225600
DEPLOY = Path(__file__).parents[3] / "deploy/rootfs"
TOOLS = ("mkfs.vfat", "mmd", "mcopy", "mdir", "mtype", "mke2fs", "debugfs")
pytestmark = pytest.mark.skipif(
    any(find(tool) is None for tool in TOOLS), reason="needs mtools, dosfstools and e2fsprogs to make file systems"
)
BOOT = {"config.txt": "kernel=vmlinuz-1\ninitramfs initrd.img-1\n", "cmdline.txt": "root=LABEL=RASPIROOT\n",
        "vmlinuz-1": "k" * 70_000, "initrd.img-1": "i", "bcm2711-rpi-4-b.dtb": "d", "overlays/a long name.dtbo": "o"}  # fmt: skip
ROOT = {"etc/fstab": "x", "etc/ssh/sshd_config": "x", "etc/systemd/system/edgegossip-node.service": "x",
        "etc/systemd/system/edgegossip-firstboot.service": "x", "usr/lib/edgegossip/firstboot.py": "x",
        "opt/edgegossip/releases/1/site/a.py": "a", 'usr/share/a "quoted" name': "q", "usr/share/hole": ""}  # fmt: skip


def bundle_of(folder, name, board="raspberry-pi-4"):
    """The bundle file of a board of a new fleet."""
    fleet = Fleet.create(folder / f"fleet-{name}", "kitchen", 20).add_all((name,), "board", 20)
    orders.change(fleet, (name,), {"board": board, "coordinator": "10.0.0.9:8000"})
    file = folder / f"{name}.kit"
    file.write_bytes(provisioning.make_bundle(fleet, name, 1.8e9))
    return file


def tree(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def make(folder):
    """A card of those files, with its description."""
    boot, root = tree(folder / "boot", BOOT), tree(folder / "root", ROOT)
    (root / "opt/edgegossip/current").symlink_to("releases/1")
    os.chmod(root / "etc/fstab", 0o600)
    card = folder / "card.img"
    disk.assemble(boot, root, card, 40 * MIB, EPOCH)
    return card


def on_boot(card, name):
    """A file of its boot partition."""
    return run(["mtype", "-i", f"{card}@@{configure.layout(card)[0].start}", f"::/{name}"], 20)


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    return make(tmp_path_factory.mktemp("card"))


@pytest.fixture
def base(card, tmp_path):
    """An image as `build` leaves it: with a description."""
    image = tmp_path / "base.img"
    place(card, image, {"board": "raspberry-pi-4", "debian": 12, "sha256": disk.sha256(card)})
    return image


def faults(image):
    return {check.name: check.fault for check in verify.verify(image) if check.fault}


def test_the_same_files_give_the_same_bytes(card, tmp_path):
    time.sleep(1.1)  # another second on the clock, other inodes, another order on the disk
    assert disk.sha256(make(tmp_path)) == disk.sha256(card)


def test_the_order_of_folders_is_that_of_their_names(tmp_path):
    """And not the disk's, in which they hardly ever lie like this."""
    names = [f"folder-{name}" for name in "hbgdfcae"]
    boot, image = tree(tmp_path / "boot", {f"{name}/file": f"in {name}" for name in names}), tmp_path / "fat.img"
    make_fat(boot, image, 40 * MIB, EPOCH)
    assert sorted(names, key=lambda name: image.read_bytes().index(f"in {name}".encode())) == sorted(names)


def test_whose_umask_it_was_is_not_in_the_bytes(tmp_path):
    """Under 077 a board's own services could not read /etc/hosts."""

    def settle(folder, folders):
        root = tree(folder / "root", {"boot/firmware/config.txt": "x", "etc/systemd/system/other": "x"})
        (root / "usr").mkdir()
        run(["sh", "-c", "mkdir made; echo made by a program >made/file"], 20, cwd=root)
        rootfs.settle(root, folder / "boot")
        rootfs.overlay(DEPLOY, root)
        rootfs.say_what_it_is(root, {"board": "x"})
        disk.assemble(folder / "boot", root, folder / "card.img", 40 * MIB, EPOCH)

    found = []
    for umask in (0o077, 0o022, 0o002):
        before = os.umask(umask)
        try:
            done = carry_out((Step("tree", "files", {}, settle),), tmp_path / f"{umask}", lambda text: None)
            assert os.umask(umask) == umask, "the user's own is as it was"
        finally:
            os.umask(before)
        found.append(disk.sha256(done["tree"].folder / "card.img"))
        assert (done["tree"].folder / "root/etc/hosts").stat().st_mode & 0o777 == 0o644
        assert (done["tree"].folder / "root/etc/systemd/resolved.conf.d").stat().st_mode & 0o777 == 0o755
    assert len(set(found)) == 1


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_our_own_files_are_readable_by_all(tmp_path, umask):
    before = os.umask(umask)
    try:
        (tmp_path / "root").mkdir(mode=0o755)
        rootfs.overlay(DEPLOY, tmp_path / "root")
        rootfs.write_files(tmp_path / "root", {"etc/a/b/hosts": "x"})
    finally:
        os.umask(before)
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "root").rglob("*") if not p.is_symlink()}
    assert modes == {0o755, 0o644}


def test_what_is_in_a_card(card):
    boot, root = configure.layout(card)
    assert (boot.kind, root.kind, boot.bootable, root.start % (4 * MIB)) == (FAT32_LBA, LINUX, True, 0)
    assert fat_files(card, boot.start) == tuple(sorted(f"/{name}" for name in BOOT))
    assert on_boot(card, "config.txt") == BOOT["config.txt"]
    assert ext4_names(card, root.start, "/etc") == ("fstab", "ssh", "systemd")
    assert ext4_names(card, root.start, "/usr/share") == ('a "quoted" name', "hole")
    with pytest.raises(DataError, match="no /none, or cannot be read"):
        ext4_names(card, root.start, "/none")


def test_file_systems_are_sound(card, tmp_path):
    boot, root = configure.layout(card)
    for partition, check in ((boot, ["fsck.vfat", "-n"]), (root, ["e2fsck", "-fn"])):
        if find(check[0]) is None:
            pytest.skip(f"no {check[0]}")
        alone = tmp_path / "part"
        data = card.read_bytes()[partition.start : partition.end]
        alone.write_bytes(data)
        done = subprocess.run([find(check[0]), *check[1:], alone], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_base_image_is_as_it_should_be(base):
    said = []
    assert {c.name for c in verify.verify(base, said.append)} == {
        "hash",
        "boot partition",
        "root file system",
        "secrets",
    }
    assert not faults(base) and "secrets: no private key and no bundle" in said


def test_a_bundle_goes_onto_the_boot_partition(base, tmp_path):
    bundle, image = bundle_of(tmp_path, "pi-01"), tmp_path / "pi-01.img"
    done = configure.configure(base, bundle, image)
    assert done.bundle.name == "pi-01" and not faults(image)
    assert on_boot(image, "edgegossip.kit") == bundle.read_text()
    assert image.stat().st_mode & 0o777 == 0o600
    assert json.loads(description(image).read_text())["base_sha256"] == disk.sha256(base)
    key = kitfile.read(bundle).identity["identity.key"].encode()
    assert key.splitlines()[1] in image.read_bytes() and key.splitlines()[1] not in base.read_bytes()
    with pytest.raises(ConfigError, match="is the card of pi-01 already"):
        configure.configure(image, bundle, tmp_path / "other.img")
    with pytest.raises(ConfigError, match="is the base image itself"):
        configure.configure(base, bundle, base)


def test_a_bundle_for_another_debian_is_refused(base, tmp_path):
    with pytest.raises(ConfigError, match="is a raspberry-pi-5: build an image for that board"):
        configure.configure(base, bundle_of(tmp_path, "pi-09", board="raspberry-pi-5"), tmp_path / "x.img")
    with pytest.raises(ConfigError, match="starts from no image of ours"):
        configure.configure(base, bundle_of(tmp_path, "pi-10", board="jetson-nano"), tmp_path / "x.img")
    assert not (tmp_path / "x.img").exists()
    configure.configure(base, bundle_of(tmp_path, "pi-11", board="raspberry-pi-3"), tmp_path / "x.img")
    about = json.loads(Path(f"{base}.json").read_text())
    newer = tmp_path / "newer.img"
    disk.copy_sparse(base, newer)
    Path(f"{newer}.json").write_text(json.dumps({**about, "debian": 13}))
    for board in ("raspberry-pi-4", "raspberry-pi-5"):  # the former starts from either
        configure.configure(newer, bundle_of(tmp_path, board, board=board), tmp_path / "y.img")


def test_a_key_in_a_base_image_is_found(base, tmp_path):
    """Wherever it lies, and a whole bundle, too."""
    bundle = bundle_of(tmp_path, "pi-01")
    key = kitfile.read(bundle).identity["identity.key"]
    for secret, at in ((key, 3 * MIB), (key, (8 << 20) - 40), (bundle.read_text(), 50 * MIB)):
        spoilt = tmp_path / "spoilt.img"
        disk.copy_sparse(base, spoilt)
        with open(spoilt, "r+b") as stream:
            stream.seek(at)
            stream.write(secret.encode())
        assert "private key at byte" in faults(spoilt)["secrets"], at
    boot, _ = configure.layout(base)
    put_in_fat(base, boot.start, [shutil.copy(bundle, tmp_path / "edgegossip.kit")], EPOCH)
    assert {"hash", "boot partition", "secrets"} <= set(faults(base))


def test_damage_is_named(base):
    with open(base, "r+b") as stream:
        stream.seek(20 * MIB)
        stream.write(b"x")
    assert "not the image that was built" in faults(base)["hash"]
    os.truncate(base, base.stat().st_size - 4096)
    with pytest.raises(DataError, match="cut short"):
        verify.verify(base)


def test_a_card_without_what_a_board_needs(tmp_path):
    boot, root = tree(tmp_path / "boot", BOOT), tree(tmp_path / "root", ROOT)
    (boot / "bcm2711-rpi-4-b.dtb").unlink()
    shutil.rmtree(root / "usr/lib/edgegossip")
    tree(root, {"etc/ssh/ssh_host_rsa_key": "x"})
    image = tmp_path / "card.img"
    disk.assemble(boot, root, image, 40 * MIB, EPOCH)
    found = faults(image)
    assert "no board starts from it" in found["boot partition"] and "has no /" in found["root file system"]


def test_keys_that_a_library_tests_itself_with_are_known(base, tmp_path):
    """GnuTLS has some. Anywhere else, and any other key, is a fault."""
    key = b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 64 + b"\n-----END PRIVATE KEY-----\n"
    other = key.replace(b"A" * 64, b"B" * 64)
    tree(tmp_path / "root", {"usr/lib/arm/lib.so.1": "", "usr/lib/arm/notes.so": other.decode()})
    (tmp_path / "root/usr/lib/arm/lib.so.1").write_bytes(b"\x7fELF" + bytes(5000) + key)
    known = of_libraries(tmp_path / "root")
    assert len(known) == 1
    for text, found in ((key, False), (other, True)):
        with open(base, "r+b") as stream:
            stream.seek(3 * MIB)
            stream.write(text)
        description(base).write_text(json.dumps({"sha256": disk.sha256(base), "library_keys": known}))
        assert ("secrets" in faults(base)) == found


def test_a_folder_that_is_not_there_is_called_by_its_name(tmp_path):
    bundle = bundle_of(tmp_path, "pi-01")
    with pytest.raises(ConfigError, match=r"there is no folder .*/nodir: make it"):
        configure.configure(tmp_path / "base.img", bundle, tmp_path / "nodir/pi-01.img")
