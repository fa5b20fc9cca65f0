"""The generated code belongs to the .proto file and runs with the oldest protobuf that we ask for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2

from edgegossip.mesh._proto import mesh_pb2
from tests.mesh.support import ROOT

VIRTUAL = "edgegossip/mesh/_proto"


def test_generated_code_is_fresh(tmp_path):
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) makes the code to compare with")
    out = tmp_path / "set"
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{VIRTUAL}=proto/edgegossip/v1",
        f"--descriptor_set_out={out}",
    ]
    subprocess.run([*command, f"{VIRTUAL}/mesh.proto"], check=True, cwd=ROOT, timeout=60)
    [made] = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    carried = descriptor_pb2.FileDescriptorProto()
    mesh_pb2.DESCRIPTOR.CopyToProto(carried)
    for file in (made, carried):  # names that newer compilers write out and older ones leave to the reader
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert carried == made


def test_generated_code_asks_for_no_newer_protobuf_than_the_package_does():
    text = (ROOT / VIRTUAL / "mesh_pb2.py").read_text()
    assert re.search(r"# Protobuf Python Version: 6\.30\.0\n", text)
