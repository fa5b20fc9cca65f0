"""Files that make a stock Raspberry Pi OS card a client: cloud-init's own check of them, and what
is in them."""

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from edgegossip.fleet import kitfile
from edgegossip.fleet.image import cloud_init
from edgegossip.fleet.image.boards import TRIXIE
from edgegossip.fleet.kitfile import Wifi
from edgegossip.types import DataError
from tests.fleet.image.bundles import bundle_of

ROOT = Path(__file__).parents[3]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@laptop"


@pytest.fixture
def bundle(tmp_path):
    wifi = (Wifi.of("Café 'n garden", "correct horse", "DE"), Wifi.of("second", "battery staple"))
    return bundle_of(tmp_path, "pi-01", ssh_keys=(KEY,), wifi=wifi)


@pytest.fixture
def wheel(tmp_path):
    return wheel_at(tmp_path / "edgegossip-1-cp312-abi3-manylinux_2_34_aarch64.whl")


def wheel_at(file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("edgegossip/__init__.py", "")
    return file


@pytest.mark.skipif(not shutil.which("cloud-init"), reason="no cloud-init here (apt install cloud-init)")
@pytest.mark.parametrize("with_keys", [True, False])
def test_cloud_init_accepts_user_data(tmp_path, bundle, with_keys):
    """Its schema for user data; versions before 23 know none for networks."""
    plain = bundle if with_keys else bundle_of(tmp_path, "pi-02")
    file = tmp_path / "user-data"
    file.write_text(cloud_init.user_data(kitfile.read(plain)))
    done = subprocess.run(["cloud-init", "schema", "--config-file", file], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "Valid" in done.stdout, done.stdout + done.stderr


def test_user_data(bundle):
    text = cloud_init.user_data(kitfile.read(bundle))
    assert text.startswith("#cloud-config\n")
    document = documented(text)
    assert document["hostname"] == "pi-01" and document["ssh_pwauth"] is False
    assert document["users"][1] == {"name": "root", "ssh_authorized_keys": [KEY]}
    assert not {"runcmd", "packages", "package_update"} & set(document), (
        "cloud-init does these once, whatever comes of it"
    )


class StockCard:
    """The root of a Raspberry Pi OS as a folder; programs that would reach beyond it only say that
    they were called."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self.root, self.programs, self.log = folder / "root", folder / "programs", folder / "log"
        self.card = self.root / "boot/firmware"
        self.card.mkdir(parents=True)
        (self.card / "cmdline.txt").write_text("console=tty1\n")
        wheel = wheel_at(folder / "edgegossip-1-cp312-abi3-linux_aarch64.whl")
        cloud_init.prepare(self.card, bundle, wheel, ROOT)
        self.programs.mkdir()
        self.program("uname", "echo aarch64")
        self.program("systemctl", f'echo "systemctl $*" >>{self.log}')
        real = f'exec {sys.executable} "$@"'
        self.program(
            "python3",
            f'case "$*" in "-c import sys"*) echo 3.13;; *"pip --version") ;; *"pip install"*) echo pip >>{self.log}; '
            f"test -e {folder}/network;; *) {real};; esac",
        )

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def run(self, *command: str) -> int:
        environ = {"PATH": f"{self.programs}:/usr/sbin:/usr/bin:/sbin:/bin", "EDGEGOSSIP_ROOT": str(self.root)}
        return subprocess.run(command, env=environ, timeout=60, stderr=subprocess.DEVNULL).returncode

    def install(self) -> int:
        return self.run("/bin/sh", str(self.card / "edgegossip/install.sh"))

    def said(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def test_a_first_boot_without_a_network_is_made_good_later(tmp_path, bundle):
    stock = StockCard(tmp_path, bundle)
    home, words = stock.root / "opt/edgegossip", stock.card / "edgegossip-install.txt"
    assert stock.install() == 1 and "is there a network?" in words.read_text() and not (home / "current").exists()
    assert stock.install() == 1, "nothing counts before all is there"
    (tmp_path / "network").touch()
    assert stock.install() == 0 and not words.exists()
    assert (home / "current/site/edgegossip/__init__.py").exists() and (home / "current/whole").exists()
    lock = (ROOT / "deploy/locks" / TRIXIE.lock).read_bytes()
    assert (home / "current/site/packages.lock").read_bytes() == lock, "updates go by it"
    assert (stock.root / "etc/systemd/system/edgegossip-node.service").exists()
    assert "systemctl start --no-block edgegossip-node.service" in stock.said()


def test_once_it_has_succeeded_updates_are_left_alone(tmp_path, bundle):
    stock = StockCard(tmp_path, bundle)
    (tmp_path / "network").touch()
    assert stock.install() == 0
    home, before = stock.root / "opt/edgegossip", stock.said()
    first = os.readlink(home / "current")
    (home / "current").unlink()
    (home / "current").symlink_to("releases/newer")
    shutil.rmtree(home / first)  # two updates later
    assert stock.install() == 0 and stock.said() == before
    assert os.readlink(home / "current") == "releases/newer"


def test_a_power_cut_while_it_installs(tmp_path, bundle):
    """After the packages, and after the files of the root file system: the next boot goes on,
    without fetching again."""
    stock = StockCard(tmp_path, bundle)
    (tmp_path / "network").touch()
    stock.program("systemctl", "kill -9 $PPID")
    assert stock.install() == -9 and stock.said() == ["pip"]
    stock.program("systemctl", f'echo "systemctl $*" >>{stock.log}')
    assert stock.install() == 0 and stock.said().count("pip") == 1


def test_every_boot_sees_to_the_unit(tmp_path, bundle):
    stock = StockCard(tmp_path, bundle)
    document = documented((stock.card / "user-data").read_text())
    (*program, where, unit), _ = document["bootcmd"]
    assert where == "/etc/systemd/system/edgegossip-install.service"
    file = tmp_path / "edgegossip-install.service"
    for _ in range(2):
        assert stock.run(*program, str(file), unit) == 0
        assert file.read_text() == cloud_init.UNIT and "Restart=on-failure" in unit
    assert stock.said()[:3] == [
        "systemctl daemon-reload",
        "systemctl enable edgegossip-install.service",
        "systemctl start --no-block edgegossip-install.service",
    ]
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, timeout=60
        )
        assert not [line for line in done.stderr.splitlines() if "edgegossip-install" in line], done.stderr


def test_who_has_a_key_is_let_in(tmp_path, bundle):
    """Raspberry Pi OS has ssh off."""
    command = ["systemctl", "enable", "--now", "--no-block", "ssh.service"]
    assert command in documented(cloud_init.user_data(kitfile.read(bundle)))["bootcmd"]
    nobody = documented(cloud_init.user_data(kitfile.read(bundle_of(tmp_path, "pi-02"))))
    assert command not in nobody["bootcmd"] and "users" not in nobody


def documented(text: str) -> dict:
    return json.loads("".join(line for line in text.splitlines() if not line.startswith("#")))


def test_network_config(bundle):
    document = json.loads(cloud_init.network_config(kitfile.read(bundle).wifi))
    points = document["wifis"]["wlan0"]["access-points"]
    assert set(points) == {"Café 'n garden", "second"} and document["wifis"]["wlan0"]["regulatory-domain"] == "DE"
    assert all(len(point["password"]) == 64 for point in points.values()), "netplan takes 64 digits for a key"
    assert "correct horse" not in json.dumps(document)
    assert "wifis" not in json.loads(cloud_init.network_config(()))


def test_a_new_bundle_is_a_new_instance(tmp_path):
    first, second = (kitfile.read(bundle_of(tmp_path / n, "pi-01")) for n in ("a", "b") if not (tmp_path / n).mkdir())
    assert cloud_init.meta_data(first) != cloud_init.meta_data(second)


def test_a_card_is_prepared(tmp_path, bundle, wheel):
    card = card_of(tmp_path)
    assert cloud_init.prepare(card, bundle, wheel, ROOT).name == "pi-01"
    assert (card / "edgegossip.kit").read_bytes() == bundle.read_bytes()
    assert stat.S_IMODE((card / "edgegossip.kit").stat().st_mode) == 0o600
    names = {path.name for path in (card / "edgegossip").iterdir()}
    locks = {path.name for path in (ROOT / "deploy/locks").iterdir()}
    assert names == {"install.sh", "rootfs.tar", wheel.name, *locks}
    for path in card.rglob("*"):
        if path.is_file() and path.name != "edgegossip.kit":
            assert b"PRIVATE KEY" not in path.read_bytes(), path


def test_what_goes_into_the_root_file_system_is_roots():
    data = cloud_init.tar_of(ROOT / "deploy/rootfs")
    assert data == cloud_init.tar_of(ROOT / "deploy/rootfs")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entries = {e.name: e for e in archive.getmembers()}
    assert entries["etc/systemd/system/edgegossip-node.service"].mode == 0o644
    assert any(".wants/edgegossip-" in name and entry.issym() for name, entry in entries.items())
    assert {(e.uid, e.gid, e.uname, e.mtime) for e in entries.values()} == {(0, 0, "", 0)}


def test_a_folder_that_is_no_card_is_refused(tmp_path, bundle, wheel):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.jpg").write_text("x")
    with pytest.raises(DataError, match="is not the boot partition"):
        cloud_init.prepare(other, bundle, wheel, ROOT)
    assert {path.name for path in other.iterdir()} == {"holiday.jpg"}
    (tmp_path / "empty").mkdir()
    for nothing in ("empty", "not-there"):
        with pytest.raises(DataError, match="no cmdline.txt.*mount the card"):
            cloud_init.prepare(tmp_path / nothing, bundle, wheel, ROOT)
    assert not (tmp_path / "not-there").exists() and not list((tmp_path / "empty").iterdir()), "no key is left there"


def card_of(tmp_path):
    card = tmp_path / "bootfs"
    card.mkdir()
    (card / "cmdline.txt").write_text("console=tty1\n")
    return card


def test_a_newer_wheel_takes_the_place_of_the_older(tmp_path, bundle, wheel):
    card = card_of(tmp_path)
    newer = wheel_at(tmp_path / "edgegossip-2-cp312-abi3-manylinux_2_34_aarch64.whl")
    for file in (wheel, newer):
        cloud_init.prepare(card, bundle, file, ROOT)
    assert [path.name for path in (card / "edgegossip").glob("*.whl")] == [newer.name], "install.sh takes the one"


@pytest.mark.parametrize(
    "name",
    [
        "edgegossip-1-cp311-cp311-manylinux_2_34_aarch64.whl",
        "edgegossip-1-cp312-abi3-linux_x86_64.whl",
        "numpy-1-cp312-abi3-linux_aarch64.whl",
        "pi-01.kit",
    ],
)
def test_what_the_card_could_not_install_is_refused(tmp_path, bundle, name):
    card, file = card_of(tmp_path), tmp_path / name
    if name != bundle.name:
        wheel_at(file)
    with pytest.raises(DataError, match="is no wheel of edgegossip for aarch64 and Python 3.13"):
        cloud_init.prepare(card, bundle, file, ROOT)
    assert [path.name for path in card.iterdir()] == ["cmdline.txt"]
