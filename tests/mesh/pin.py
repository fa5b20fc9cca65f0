"""The shapes of the protocol's messages as data, to hold later versions against. To pin what was
added:

python -m tests.mesh.pin
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FileDescriptor

PINNED = Path(__file__).with_name("pinned.json")
PROTOS = Path(__file__).resolve().parents[2] / "proto/edgegossip/v1"


def shapes() -> dict[str, Any]:
    """Full names of fields, enumeration values and methods of every .proto file, with all that a
    peer relies on."""
    return dict(sorted(item for path in PROTOS.glob("*.proto") for item in _of_file(path.stem).items()))


def _of_file(stem: str) -> dict[str, Any]:
    file: FileDescriptor = importlib.import_module(f"edgegossip.mesh._proto.{stem}_pb2").DESCRIPTOR
    found: dict[str, Any] = {}
    for enum in file.enum_types_by_name.values():
        found |= {f"{enum.full_name}.{value.name}": value.number for value in enum.values}
    for service in file.services_by_name.values():
        for m in service.methods:
            streams = [m.client_streaming, m.server_streaming]
            found[m.full_name] = [m.input_type.full_name, m.output_type.full_name, *streams]
    stack = list(file.message_types_by_name.values())
    while stack:
        message = stack.pop()
        stack += message.nested_types
        for f in message.fields:
            of = f.message_type or f.enum_type
            oneof = f.containing_oneof.name if f.containing_oneof else None
            found[f.full_name] = [f.number, f.type, f.is_repeated, of.full_name if of else None, oneof]
    return found


if __name__ == "__main__":
    pinned = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    lines = [f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in sorted((shapes() | pinned).items())]
    PINNED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
