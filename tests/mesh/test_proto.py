"""The generated code belongs to the .proto file and runs with the oldest protobuf that we ask
for."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2

from tests.mesh import pin
from tests.mesh.support import ROOT

VIRTUAL = "edgegossip/mesh/_proto"


@pytest.mark.parametrize("stem", sorted(path.stem for path in pin.PROTOS.glob("*.proto")))
def test_generated_code_is_fresh(tmp_path, stem):
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) makes the code to compare with")
    out = tmp_path / "set"
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{VIRTUAL}=proto/edgegossip/v1",
        f"--descriptor_set_out={out}",
    ]
    subprocess.run([*command, f"{VIRTUAL}/{stem}.proto"], check=True, cwd=ROOT)
    [made] = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    carried = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(f"edgegossip.mesh._proto.{stem}_pb2").DESCRIPTOR.CopyToProto(carried)
    for file in (made, carried):  # names that newer compilers write out and older ones leave to the reader
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert carried == made


@pytest.mark.parametrize("name", ["mesh", "membership"])
def test_generated_code_asks_for_no_newer_protobuf_than_the_package_does(name):
    text = (ROOT / VIRTUAL / f"{name}_pb2.py").read_text()
    assert re.search(r"# Protobuf Python Version: 6\.30\.0\n", text)


def test_later_versions_understand_earlier_ones():
    """What a peer relies on stays: no field, value or method is taken away, renumbered or given
    another type."""
    pinned, now = json.loads(pin.PINNED.read_text()), pin.shapes()
    changed = {name: (shape, now.get(name)) for name, shape in pinned.items() if now.get(name) != shape}
    assert not changed, (
        "boards of an earlier version would be misread: raise Hello.protocol_version, or add fields instead"
    )
    added = now.keys() - pinned.keys()
    assert not added, f"pin what is new: python -m tests.mesh.pin ({', '.join(sorted(added))})"


def test_numbers_are_used_once():
    for path in pin.PROTOS.glob("*.proto"):
        for message in re.findall(r"^message \w+ \{(.*?)^\}", path.read_text(), re.S | re.M):
            numbers = re.findall(r"= (\d+);", re.sub(r"enum \w+ \{.*?\}", "", message, flags=re.S))
            assert len(numbers) == len(set(numbers))
