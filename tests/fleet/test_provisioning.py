"""Bundles: of one piece and signed, for their owner only, and nobody else's."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgegossip.cli.fleet import fleet as command
from edgegossip.fleet import kitfile, orders, provisioning
from edgegossip.fleet.kitfile import Wifi
from edgegossip.fleet.store import Fleet
from edgegossip.types import ConfigError, DataError, EdgegossipError
from tests.sentence import is_sentence


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    made = Fleet.create(tmp_path_factory.mktemp("fleets") / "kitchen", "kitchen", 20)
    made = made.add_all(("pi-01", "pi-02"), "board", 20)
    wifi = (Wifi.of("Garden", "correct horse", "DE"),)
    given = {"board": "raspberry-pi-4", "wifi": wifi, "coordinator": "10.0.0.9:8000", "check_in": "10.0.0.9:7710"}
    orders.change(made, ("pi-01", "pi-02"), given)
    return made


def test_a_bundle_has_all_that_the_board_needs(fleet):
    bundle = kitfile.parse(provisioning.make_bundle(fleet, "pi-01", 1.8e9))
    assert (bundle.name, bundle.board, bundle.fleet_id, bundle.issued_s) == (
        "pi-01",
        "raspberry-pi-4",
        fleet.fleet_id,
        1_800_000_000,
    )
    assert bundle.node == ("--coordinator", "10.0.0.9:8000"), "which tells it recipe and members"
    assert bundle.identity["identity.key"] == (fleet.folder / "boards/pi-01/identity.key").read_text()
    assert (
        bundle.wifi[0].ssid == "Garden" and "correct horse" not in provisioning.make_bundle(fleet, "pi-01", 0).decode()
    )


def test_the_key_of_a_password_is_that_of_the_standard():
    """IEEE 802.11i-2004, H.4.3: the first test vector."""
    assert Wifi.of("IEEE", "password").psk == "f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e"


def test_boards_that_have_a_profile_can_be_named():
    found = {file.stem for file in (Path(__file__).parents[2] / "devices").glob("*.toml")}
    assert found <= set(provisioning.BOARDS)


def body_with(data: bytes, **changes: object) -> bytes:
    document = json.loads(data)
    document["body"] = json.dumps({**json.loads(document["body"]), **changes}, sort_keys=True)
    return json.dumps(document).encode()


def test_nothing_of_another_can_be_put_in(fleet, tmp_path):
    one, two = provisioning.make_bundle(fleet, "pi-01", 0), provisioning.make_bundle(fleet, "pi-02", 0)
    other = Fleet.create(tmp_path / "other", "other", 20).add("pi-01", "board", 20)
    orders.change(other, ("pi-01",), {"join": ("10.0.0.1:7700",), "founder": "pi-01"})
    theirs = json.loads(json.loads(provisioning.make_bundle(other, "pi-01", 0))["body"])
    bodies = [json.loads(json.loads(k)["body"]) for k in (one, two)]
    swaps = {
        "its certificate is that of pi-01": {"name": "pi-02"},
        "its key is not that of its certificate": {
            "identity": {**bodies[0]["identity"], "identity.key": bodies[1]["identity"]["identity.key"]}
        },
        "does not fit what was signed": {"check_in": "10.6.6.6:7710"},
        "of two fleets": {"identity": {**bodies[0]["identity"], "ca.pem": theirs["identity"]["ca.pem"]}},
        "not of our fleet": {"identity": theirs["identity"], "fleet_id": theirs["fleet_id"]},
    }
    for why, change in swaps.items():
        with pytest.raises(EdgegossipError, match=why):
            kitfile.parse(body_with(one, **change))


def test_a_board_signs_no_bundles(fleet):
    """A stolen pi-01 cannot make itself a bundle with other networks, nor one for pi-02."""
    from edgegossip.security.identity import Identity

    bundle = kitfile.parse(provisioning.make_bundle(fleet, "pi-01", 0))
    with pytest.raises(EdgegossipError, match="where that of operator is due"):
        kitfile.parse(bundle.signed(Identity.load(fleet.folder / "boards/pi-01")))


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 0.99])
def test_a_flipped_bit_or_a_cut_is_one_sentence(fleet, at):
    data = bytearray(provisioning.make_bundle(fleet, "pi-01", 0))
    place = int(at * len(data))
    data[place] ^= 1
    for bad in (bytes(data), bytes(data[:place]), b"", b"\0" * 100, b"x" * (kitfile.MAX_BYTES + 1)):
        with pytest.raises(EdgegossipError) as refused:
            kitfile.parse(bad)
        assert is_sentence(refused.value)


def test_revoked_boards_get_none_and_kits_without_a_run_say_so(tmp_path):
    fleet = Fleet.create(tmp_path / "fleet", "home", 20).add_all(("pi-01", "pi-02"), "board", 20)
    with pytest.raises(ConfigError, match="edgegossip fleet set pi-01 --coordinator HOST:PORT"):
        provisioning.make_bundle(fleet, "pi-01", 0)
    fleet = fleet.revoke("pi-02")
    with pytest.raises(ConfigError, match="pi-02 is revoked already"):
        provisioning.make_bundle(fleet, "pi-02", 0)


def test_a_mesh_has_a_founder_and_others_who_join(tmp_path):
    fleet = Fleet.create(tmp_path / "fleet", "home", 20).add_all(("a", "b"), "board", 20)
    given = {"join": ("a.local:7700",), "founder": "a", "settings": ("run.rounds=3", "run.threads=2")}
    orders.change(fleet, ("a", "b"), given)
    a, b = (kitfile.parse(provisioning.make_bundle(fleet, name, 0)).node for name in ("a", "b"))
    assert a[:7] == ("quickstart-gossip", "--set", "run.rounds=3", "--set", "run.threads=2", "--set", "run.nodes=2")
    assert a[7:] == ("--members", "a,b", "--listen", "0.0.0.0:7700", "--advertise", "a.local:7700")
    assert b == ("--join", "a.local:7700", "--listen", "0.0.0.0:7700", "--set", "run.threads=2"), (
        "what is its own matter"
    )


def test_a_board_that_gets_a_coordinator_after_peers_runs_no_recipe_of_theirs():
    mesh = provisioning.Profile().changed(
        recipe="quickstart-gossip", join=("a.local:7700",), founder="a", settings=("run.nodes=3",)
    )
    server = mesh.changed(coordinator="c.local:8000", settings=("run.threads=2",))
    assert provisioning.node_arguments(server, "a", ("a", "b")) == (
        "--coordinator",
        "c.local:8000",
        "--set",
        "run.threads=2",
    )
    back = server.changed(join=("a.local:7700",), founder="a")
    assert (back.recipe, back.settings, back.coordinator) == ("", (), "")
    assert mesh.changed(join=("b.local:7700",)).recipe == "quickstart-gossip"


MESH = {"join": ("a.local:7700",), "founder": "pi-01"}
CLIENT = {"coordinator": "10.0.0.9:8000"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({**MESH, "settings": ("run.nods=2",)}, "run.nods"),
        ({**MESH, "settings": ("foo",)}, "--set foo"),
        ({**MESH, "recipe": "nope"}, "nope"),
        ({**MESH, "recipe": "quickstart-server"}, "is for runs through a coordinator"),
        ({"join": ("a.local:7700",)}, "also takes --founder NAME"),
        ({**MESH, "founder": "zz"}, "zz is not in the fleet"),
        ({**CLIENT, "recipe": "quickstart-server"}, "the coordinator tells its boards"),
        ({**CLIENT, "boards": ("pi-01",)}, "--boards: the coordinator tells its boards"),
        ({**CLIENT, "settings": ("run.rounds=3",)}, "--set run.rounds=3: the coordinator tells its boards.*data.dir"),
    ],
)
def test_what_no_board_could_start_with_is_refused_where_it_is_said(tmp_path, given, why):
    fleet = Fleet.create(tmp_path / "fleet", "home", 20).add_all(("pi-01", "pi-02"), "board", 20)
    with pytest.raises(ConfigError, match=why):
        orders.change(fleet, ("pi-01", "pi-02"), given)
    assert not (fleet.folder / "profiles").exists()


def test_what_an_earlier_version_took_and_no_board_would_is_refused(fleet):
    provisioning.keep_profile(fleet.folder, "pi-02", provisioning.Profile(**MESH, settings=("run.nods=2",)))
    with pytest.raises(ConfigError, match=r"run\.nods"):
        provisioning.make_bundle(fleet, "pi-02", 0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--founder", "zz", "--join", "a.local:7700"), "zz is not in the fleet"),
        (("--coordinator", "127.0.0.1:8000"), "each board itself"),
        (("--coordinator", "10.0.0.9:8000", "--set", "run.rounds=3"), "the coordinator tells its boards"),
    ],
)
def test_a_mistake_leaves_no_certificate(tmp_path, words, why):
    fleet = Fleet.create(tmp_path / "fleet", "home", 20)
    done = CliRunner().invoke(command, ["add", "pi-01", "--fleet", str(fleet.folder), *words])
    assert re.search(why, str(done.exception)) and isinstance(done.exception, ConfigError)
    assert [m.role for m in Fleet.open(fleet.folder).members] == ["operator"]


def test_boards_that_are_added_together_may_name_each_other(tmp_path):
    fleet = Fleet.create(tmp_path / "fleet", "home", 20)
    run = ["--founder", "a", "--join", "a.local:7700", "--boards", "a,b"]
    done = CliRunner().invoke(command, ["add", "a", "b", "--fleet", str(fleet.folder), *run])
    assert not done.exception, done.output
    assert kitfile.parse(provisioning.make_bundle(Fleet.open(fleet.folder), "b", 0)).node[:2] == (
        "--join",
        "a.local:7700",
    )


def test_the_commands(tmp_path, monkeypatch):
    def call(*words: str, text: str | None = None) -> str:
        done = CliRunner().invoke(command, words, input=text)
        return str(done.exception) if isinstance(done.exception, EdgegossipError) else done.output

    monkeypatch.chdir(tmp_path)
    assert "fleet lab (" in call("init", "lab")
    (tmp_path / "password").write_text("correct horse\n")
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA me\n")
    wifi = ("--wifi", "Garden", "--wifi-password-file", "password", "--wifi-country", "DE")
    board = ("--board", "raspberry-pi-4", "--ssh-key", "key.pub", "--coordinator", "10.0.0.9:8000")
    assert "next: edgegossip fleet kit --fleet fleet pi-01 -o pi-01.kit" in call("add", "pi-01", *board, *wifi)
    assert "did you mean raspberry-pi-4" in call("add", "pi-02", "--board", "rasberry-pi-4")
    assert "pi-02" not in call("list"), "a mistake leaves no certificate"
    assert "only you can read it" in call("kit", "pi-01")
    assert stat.S_IMODE((tmp_path / "pi-01.kit").stat().st_mode) == 0o600
    assert {stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "fleet/profiles").iterdir()} == {0o600}
    assert "kept for pi-01" in call("set", "pi-01", "--join", "10.0.0.1:7700", "--founder", "pi-01")
    call("kit", "pi-01")
    bundle = kitfile.read(tmp_path / "pi-01.kit")
    assert "--members" in bundle.node and bundle.ssh_keys == ("ssh-ed25519 AAAA me",) and bundle.wifi[0].country == "DE"
    monkeypatch.setenv("EDGEGOSSIP_WIFI_PASSWORD", "short")
    assert "8 to 63" in call("set", "pi-01", "--wifi", "Garden")
    monkeypatch.delenv("EDGEGOSSIP_WIFI_PASSWORD")
    assert "--wifi-password-file" in call("set", "pi-01", "--wifi", "Garden")


def test_keys_do_not_get_into_repositories(fleet, tmp_path):
    assert "*" in (fleet.folder / ".gitignore").read_text().splitlines()
    assert not provisioning.in_repository(tmp_path / "pi-01.kit")
    (tmp_path / ".git").mkdir()
    assert provisioning.in_repository(tmp_path / "below" / "pi-01.kit")
    (tmp_path / ".gitignore").write_text("*.kit\n")
    assert not provisioning.in_repository(tmp_path / "pi-01.kit")


def test_a_file_that_is_no_bundle(tmp_path):
    (tmp_path / "x.kit").write_text("{}")
    with pytest.raises(DataError, match="make it with `edgegossip fleet kit`"):
        kitfile.read(tmp_path / "x.kit")


def test_what_to_do_next_is_what_works(tmp_path, monkeypatch):
    def call(*words: str) -> str:
        done = CliRunner().invoke(command, words)
        return str(done.exception) if isinstance(done.exception, EdgegossipError) else done.output

    monkeypatch.chdir(tmp_path)
    call("init", "lab")
    call("add", "pi-01", "--board", "raspberry-pi-4", "--coordinator", "10.0.0.9:8000")
    call("add", "jet", "--board", "jetson-orin-nano", "--coordinator", "10.0.0.9:8000")
    assert "image configure base.img --kit pi-01.kit" in call("kit", "pi-01")
    said = call("kit", "jet")
    assert "image configure" not in said and "sudo deploy/jetson/install.sh edgegossip-*.whl jet.kit" in said
    assert "edgegossip fleet add --fleet fleet --again pi-01" in (call("revoke", "pi-01") and call("kit", "pi-01"))
    again = call("add", "--again", "pi-01")
    assert "`fleet kit` makes one file of it" in again and "next: edgegossip fleet kit" in again
    monkeypatch.setenv("EDGEGOSSIP_WIFI_PASSWORD", "correct horse")
    done = CliRunner().invoke(command, ["set", "jet", "--wifi", "x", "--wifi-country", "Germany"])
    assert isinstance(done.exception, ConfigError), "what was typed is wrong, not a file"
