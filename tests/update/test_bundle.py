"""Bundles: signed by the fleet's operator, and nothing in them that leads out of a release's folder
or does not end."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgegossip.fleet.releases import examine
from edgegossip.security.identity import Identity
from edgegossip.types import DecodeError, PeerError
from edgegossip.update import bundle
from edgegossip.update.bundle import DOMAIN, MAGIC, MAX_STORED_BYTES, Head, content_of, parse_head, parse_manifest
from tests.sentence import done_or_told, is_sentence
from tests.update.support import release, site_of

FILES = {"edgegossip/__init__.py": b'__version__ = "2"\n', "edgegossip/a.py": b"a = 1\n" * 500, "empty": b""}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    from edgegossip.fleet.store import Fleet

    found = {}
    for name in ("home", "other"):
        made = Fleet.create(tmp_path_factory.mktemp("fleets") / name, name, 20).add("pi-01", "board", 20)
        found |= {f"{name} {m.role}": Identity.load(made.folder / m.folder) for m in made.members}
    return found


def head_of(signer: Identity, fleet_id: str) -> Head:
    packed = release(FILES, fleet=fleet_id)[0].pack()
    return Head(packed, signer.sign(DOMAIN + hashlib.sha256(packed).digest()))


def test_what_was_packed_is_read(fleet):
    made, blobs = release(FILES, fleet=fleet["home board"].fleet)
    head = head_of(fleet["home operator"], made.fleet_id)
    data = head.write() + blobs
    found, begin = parse_head(data)
    assert (found, data[begin:]) == (head, blobs)
    assert found.manifest(fleet["home board"]) == made
    assert [content_of(p, blobs[p.at : p.at + p.stored_bytes]) for p in made.blobs] == [v for v in FILES.values() if v]


@pytest.mark.parametrize(
    ("signer", "why"),
    [("other operator", "who is not of our fleet"), ("home board", "where that of operator is due")],
)
def test_a_bundle_signed_by_another_key_is_refused(fleet, signer, why):
    with pytest.raises(PeerError, match=why):
        head_of(fleet[signer], fleet["home board"].fleet).manifest(fleet["home board"])


def test_a_manifest_that_was_changed_and_one_of_another_fleet_are_refused(fleet):
    ours = fleet["home board"]
    head = head_of(fleet["home operator"], ours.fleet)
    with pytest.raises(PeerError, match="does not fit what was signed"):
        replace(head, packed=release({"x": b"evil"}, fleet=ours.fleet)[0].pack()).manifest(ours)
    with pytest.raises(PeerError, match="a release of fleet"):
        head_of(fleet["home operator"], "0" * 16).manifest(ours)


def test_a_revoked_operator_signs_nothing_any_more(tmp_path):
    from edgegossip.fleet.store import Fleet

    made = Fleet.create(tmp_path / "fleet", "home", 20).add("pi-01", "board", 20)
    head = head_of(Identity.load(made.folder / "operator"), made.fleet_id)
    made.revoke("the-operator")
    with pytest.raises(PeerError, match="revoked"):
        head.manifest(Identity.load(made.folder / "boards/pi-01"))


BAD_PATHS = (
    *("../x", "site/../../etc/passwd", "/etc/passwd", "site//x", "site/./x", "site/", "site", "", "sites/x"),
    *("site/a\0b", "site/" + "x" * 256, "site/" + "/".join("x" * 9 for _ in range(120)), None),
)


def packed(**changes: object) -> bytes:
    document = json.loads(zlib.decompress(release(FILES)[0].pack()))
    return zlib.compress(json.dumps({**document, **changes}).encode())


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_stay_below_site(path):
    sha = hashlib.sha256(b"").hexdigest()
    with pytest.raises(DecodeError):
        parse_manifest(packed(files=[[path, 0, sha, []]]))


SHA = "0" * 64


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": [["site/a", 0, SHA, []], ["site/a", 0, SHA, []]]},
        {"files": [["site/a", 0, SHA, []], ["site/a/b", 0, SHA, []]]},
        {"files": [["site/a", 0, SHA, [99]]]},
        {"files": [["site/a", 0, SHA, [-1]]]},
        {"files": [["site/a", 0, "../../x", [0]]]},
        {"files": [["site/a", 0, SHA]]},
        {"files": [[f"site/{k}", 0, SHA, []] for k in range(bundle.MAX_FILES + 1)]},
        {"files": [["site/a", 0, SHA, [0] * 2000]], "blobs": [[SHA, bundle.PIECE_BYTES, 9]]},
        {"blobs": [[SHA, bundle.PIECE_BYTES + 1, 9]]},
        {"blobs": [[SHA, 1, 10**6]]},
        {"blobs": [[SHA, -1, 0]]},
        {"blobs": [[SHA, True, 0]]},
        {"version": "../../x"},
        {"sequence": 0},
        {"sequence": 1 << 60},
    ],
)
def test_a_manifest_that_asks_too_much_is_refused(changes):
    with pytest.raises(DecodeError) as refused:
        parse_manifest(packed(**changes))
    assert is_sentence(refused.value)


def test_a_manifest_that_inflates_without_end_is_refused():
    bomb = zlib.compress(b" " * (bundle.MAX_MANIFEST_BYTES + 1))
    assert len(bomb) < MAX_STORED_BYTES
    with pytest.raises(DecodeError, match="inflates"):
        parse_manifest(bomb)


def test_a_piece_is_what_the_manifest_says_or_nothing():
    made, blobs = release({"a": b"hello"})
    piece = made.blobs[0]
    for bad in (blobs[:-1], blobs + b"x", zlib.compress(b"hellp"), zlib.compress(b"hello" * 10**6), b"", b"\xff" * 20):
        with pytest.raises(DecodeError):
            content_of(piece, bad)


def test_a_length_that_is_too_large_is_refused_before_it_is_waited_for():
    with pytest.raises(DecodeError, match="at most"):
        parse_head(MAGIC + (MAX_STORED_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(DecodeError, match="no bundle"):
        parse_head(b"PK\3\4" + bytes(20))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200), st.binary(max_size=8))
def test_any_bytes_are_a_bundle_or_refused_in_a_sentence(noise, at, patch):
    data = bytearray(Head(release(FILES)[0].pack(), b"s").write())
    data[at : at + len(patch)] = patch
    for attempt in (noise, bytes(data)):
        with done_or_told():
            found = parse_head(attempt)
            if found is not None:
                parse_manifest(found[0].packed)


def test_a_folder_is_packed_and_read_again(tmp_path: Path):
    from edgegossip.fleet import orders, releases
    from edgegossip.fleet.store import Fleet
    from edgegossip.types import ConfigError, DataError

    fleet = Fleet.create(tmp_path / "fleet", "home", 20).add_all(("pi-01", "pi-02"), "board", 20)
    site = site_of(tmp_path / "site", "2", {**FILES, "edgegossip/empty": b""})
    out, files = tmp_path / "2.bundle", {f"site/{p.relative_to(site)}" for p in site.rglob("*") if p.is_file()}
    made = releases.build(fleet, examine(site), out)
    assert (made.version, made.sequence, {e.path for e in made.entries}) == ("2", 1, files)
    assert (made.machine, made.python, made.packages) == ("aarch64", "3.11", ""), "with a file that is not ours"
    later = releases.build(fleet, replace(examine(site), version="3"), tmp_path / "3.bundle")
    assert orders.push(fleet, out, ["pi-01"]) == (1, ("pi-01",)) and later.sequence == 2
    assert releases.build(fleet, examine(site), tmp_path / "4.bundle").sequence == 3, "no number twice"
    assert orders.push(fleet, tmp_path / "3.bundle", ["pi-01"]) == (2, ("pi-01",))
    assert orders.push(fleet, out, []) == (4, ("pi-01", "pi-02")), "an older one gets a number of its own"
    head, _ = releases.read_head(releases.bundle_file(fleet.folder, 4))
    assert head.manifest(Identity.load(fleet.folder / "boards/pi-01")).version == "2"
    other = Fleet.create(tmp_path / "other", "other", 20).add("pi-01", "board", 20)
    with pytest.raises(DataError, match="not of our fleet"):
        orders.push(other, out, [])
    with pytest.raises(ConfigError, match="did you mean pi-01"):
        orders.push(fleet, out, ["pi-10"])
    (site / "link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="symbolic link"):
        releases.build(fleet, examine(site), out)


def test_what_could_not_start_is_not_packed(tmp_path: Path):
    from edgegossip.types import ConfigError

    lock = "numpy==2.4.6 \\\n    --hash=sha256:00\nPy_YAML==6 \\\n"
    whole = {"numpy/__init__.py": b"", "numpy-2.4.6.dist-info/METADATA": b"", "py_yaml-6.dist-info/METADATA": b""}
    assert not examine(site_of(tmp_path / "ours", "2", {}, lock=lock)).whole
    found = examine(site_of(tmp_path / "whole", "2", whole, "x86_64", "3.13", lock))
    assert found.whole and (found.machine, found.python) == ("x86_64", "3.13")

    def refused(why: str, gone: str) -> None:
        site = site_of(tmp_path / f"without {gone}", "2", whole, lock=lock)
        shutil.rmtree(site / gone) if (site / gone).is_dir() else (site / gone).unlink()
        with pytest.raises(ConfigError, match=why):
            examine(site)

    refused("no edgegossip is in it", "edgegossip/version.py")
    refused("no native module", "edgegossip/native")
    refused("has no packages.lock", "packages.lock")
    refused("compiled for no Python", "edgegossip/__pycache__")
    refused("lacks numpy 2.4.6 of its packages.lock, and could not start", "numpy-2.4.6.dist-info")
    strange = site_of(tmp_path / "strange", "2", {"edgegossip/native/_native.abi3.so": b"#!/bin/sh\n" * 9}, lock=lock)
    with pytest.raises(ConfigError, match="no machine that is known"):
        examine(strange)


def test_a_release_of_our_package_alone_has_no_other_files():
    made, _ = release({"edgegossip/a.py": b"a", "edgegossip-2.dist-info/METADATA": b"m"}, packages="a" * 64)
    assert parse_manifest(made.pack()) == made
    for path in ("numpy/a.py", "edgegossip.py", "edgegossip_evil/a.py", "packages.lock", "edgegossip-2.libs/a"):
        with pytest.raises(DecodeError, match="not ours"):
            parse_manifest(release({"edgegossip/a.py": b"a", path: b"x"}, packages="a" * 64)[0].pack())
    with pytest.raises(DecodeError, match="hash that is none"):
        parse_manifest(release({"edgegossip/a.py": b"a"}, packages="abc")[0].pack())
