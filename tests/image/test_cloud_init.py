"""Files that make a stock Raspberry Pi OS card a client: cloud-init's own check of them, and what is in them."""

import io
import json
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from edgegossip.fleet import kitfile
from edgegossip.fleet.kitfile import Wifi
from edgegossip.image import cloud_init
from edgegossip.types import DataError
from tests.image.kits import kit_of

ROOT = Path(__file__).parents[2]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@laptop"


@pytest.fixture
def kit(tmp_path):
    wifi = (Wifi.of("Café 'n garden", "correct horse", "DE"), Wifi.of("second", "battery staple"))
    return kit_of(tmp_path, "pi-01", ssh_keys=(KEY,), wifi=wifi)


@pytest.fixture
def wheel(tmp_path):
    file = tmp_path / "edgegossip-1-cp312-abi3-linux_aarch64.whl"
    file.write_bytes(b"PK wheel")
    return file


@pytest.mark.skipif(not shutil.which("cloud-init"), reason="no cloud-init here (apt install cloud-init)")
@pytest.mark.parametrize("with_keys", [True, False])
def test_cloud_init_accepts_user_data(tmp_path, kit, with_keys):
    """Its schema for user data; versions before 23 know none for networks."""
    plain = kit if with_keys else kit_of(tmp_path, "pi-02")
    file = tmp_path / "user-data"
    file.write_text(cloud_init.user_data(kitfile.read(plain)))
    done = subprocess.run(["cloud-init", "schema", "--config-file", file], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "Valid" in done.stdout, done.stdout + done.stderr


def test_user_data(kit):
    text = cloud_init.user_data(kitfile.read(kit))
    assert text.startswith("#cloud-config\n")
    document = json.loads("".join(line for line in text.splitlines() if not line.startswith("#")))
    assert document["hostname"] == "pi-01" and document["ssh_pwauth"] is False
    assert document["users"][1] == {"name": "root", "ssh_authorized_keys": [KEY]}
    assert document["runcmd"] == [["sh", "/boot/firmware/edgegossip/install.sh"]]


def test_network_config(kit):
    document = json.loads(cloud_init.network_config(kitfile.read(kit).wifi))
    points = document["wifis"]["wlan0"]["access-points"]
    assert set(points) == {"Café 'n garden", "second"} and document["wifis"]["wlan0"]["regulatory-domain"] == "DE"
    assert all(len(point["password"]) == 64 for point in points.values()), "netplan takes 64 digits for a key"
    assert "correct horse" not in json.dumps(document)
    assert "wifis" not in json.loads(cloud_init.network_config(()))


def test_a_new_kit_is_a_new_instance(tmp_path):
    first, second = (kitfile.read(kit_of(tmp_path / n, "pi-01")) for n in ("a", "b") if not (tmp_path / n).mkdir())
    assert cloud_init.meta_data(first) != cloud_init.meta_data(second)


def test_a_card_is_prepared(tmp_path, kit, wheel):
    card = tmp_path / "bootfs"
    card.mkdir()
    (card / "cmdline.txt").write_text("console=tty1\n")
    assert cloud_init.prepare(card, kit, wheel, ROOT).name == "pi-01"
    assert (card / "edgegossip.kit").read_bytes() == kit.read_bytes()
    assert stat.S_IMODE((card / "edgegossip.kit").stat().st_mode) == 0o600
    names = {path.name for path in (card / "edgegossip").iterdir()}
    locks = {path.name for path in (ROOT / "deploy/locks").iterdir()}
    assert names == {"install.sh", "rootfs.tar", wheel.name, *locks}
    for path in card.rglob("*"):
        if path.is_file() and path.name != "edgegossip.kit":
            assert b"PRIVATE KEY" not in path.read_bytes(), path


def test_what_goes_into_the_root_file_system_is_roots(kit):
    data = cloud_init.tar_of(ROOT / "deploy/rootfs")
    assert data == cloud_init.tar_of(ROOT / "deploy/rootfs")
    entries = {e.name: e for e in tarfile.open(fileobj=io.BytesIO(data)).getmembers()}
    assert entries["etc/systemd/system/edgegossip-node.service"].mode == 0o644
    assert any(".wants/edgegossip-" in name and entry.issym() for name, entry in entries.items())
    assert {(e.uid, e.gid, e.uname, e.mtime) for e in entries.values()} == {(0, 0, "", 0)}


def test_a_folder_that_is_no_card_is_refused(tmp_path, kit, wheel):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.jpg").write_text("x")
    with pytest.raises(DataError, match="is not the boot partition"):
        cloud_init.prepare(other, kit, wheel, ROOT)
    assert {path.name for path in other.iterdir()} == {"holiday.jpg"}


def test_the_installer_is_a_shell_script():
    subprocess.run(["/bin/sh", "-n", ROOT / "deploy/cloud-init/install.sh"], check=True)
