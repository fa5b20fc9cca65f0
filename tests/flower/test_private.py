"""When another Flower version breaks the coordinator, these tests say what has moved."""

from __future__ import annotations

import ast
import importlib
import inspect
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

import edgegossip.flower
from edgegossip.flower._private import link, runtime, superlink
from edgegossip.memory import Spool
from edgegossip.types import PeerError

PUBLIC = ("flwr.app", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.clientapp")
PACKAGE = Path(edgegossip.flower.__file__).parent
PRIVATE = sorted((PACKAGE / "_private").glob("*.py"))


def _imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import of Flower in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            found += [(node.module or "", alias.name) for alias in node.names]
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "flwr"]
    return found


def test_only_one_package_uses_what_is_not_public() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path not in PRIVATE:
            assert {module for module, _ in _imports(path)} <= set(PUBLIC), path.name


@pytest.mark.parametrize(("module", "name"), sorted({name for path in PRIVATE for name in _imports(path)}))
def test_name_is_still_there(module: str, name: str) -> None:
    text = f"Flower {version('flwr')} has no {module}.{name}: edgegossip was written for 1.41"
    try:
        there = hasattr(importlib.import_module(module), name)
    except ImportError:
        there = False
    if not there:
        there = importlib.util.find_spec(f"{module}.{name}") is not None
    assert there, text


@pytest.mark.parametrize(
    ("client", "methods"),
    [
        (
            link.FleetHttpClient,
            "RegisterNode ActivateNode DeactivateNode UnregisterNode SendNodeHeartbeat PullMessages PushMessages "
            "PullObject PushObject ConfirmMessageReceived",
        ),
        (
            runtime.RuntimeHttpClient,
            "AcquireTask PullTaskInput PushTaskOutput SendTaskHeartbeat GetNodes PullMessages PushMessages PullObject "
            "PushObject ConfirmMessageReceived",
        ),
        (runtime.ControlHttpClient, "StartRun"),
    ],
)
def test_client_still_has_its_methods(client: type, methods: str) -> None:
    assert not [m for m in methods.split() if not hasattr(client, m)]


def test_heartbeats_still_tell_how_long_a_board_is_silent() -> None:
    fields = runtime.GetNodesRequest.DESCRIPTOR.file.pool.FindMessageTypeByName("flwr.proto.NodeInfo").fields_by_name
    assert {"node_id", "online_until", "heartbeat_interval"} <= set(fields)
    assert runtime.HEARTBEAT_PATIENCE == 2


def test_middleware_that_is_left_out_still_exists_and_the_rest_is_known() -> None:
    from flwr.superlink import main

    names = [m.cls.__name__ for m in main._get_middleware()]
    assert set(superlink.IDLE_MIDDLEWARE) <= set(names)
    assert [n for n in names if n not in superlink.IDLE_MIDDLEWARE] == [
        "BaseHTTPMiddleware",
        "ControlAuthenticationMiddleware",
        "ProtobufTranslationMiddleware",
        "NodeAuthMiddleware",
    ]


def test_superlink_still_takes_our_options() -> None:
    flower_superlink = importlib.import_module("flwr.superlink.cli.flower_superlink")
    parser = flower_superlink._parse_args_run_superlink()
    options = {o for action in parser._actions for o in action.option_strings}
    wanted = (
        "--insecure --host --port --isolation --superexec-auth-secret-file --disable-runtime-dependency-installation"
    )
    assert set(wanted.split()) <= options


def test_task_identity_is_where_messages_look_for_their_run(in_run: int) -> None:
    from flwr.app import Message, RecordDict

    assert "TaskIdentity" in inspect.getsource(Message)
    assert Message(RecordDict(), dst_node_id=5, message_type="train").metadata.run_id == in_run


RANDOM = np.random.default_rng(1).bytes(7_000_000)
ARRAYS = {"a": bytes(12_000_000), "b": RANDOM, "c": b""}


def _as_sent(in_run: int, data: Mapping[str, bytes] = ARRAYS) -> tuple[Message, link.Incoming]:
    """A message with arrays: two of many chunks, some of them the same, and one that is empty."""
    arrays = {name: Array("float32", (len(values) // 4,), "x.v1", values) for name, values in data.items()}
    content = RecordDict({"arrays": ArrayRecord(arrays), "ask": ConfigRecord({"ask": "evaluate"})})
    message = Message(content, dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
    return message, link.Incoming(remove_content_from_message(message), get_object_tree(message), contents, False)


def _serving(contents: dict[str, bytes]) -> Callable[[PullObjectRequest], PullObjectResponse]:
    """A SuperLink that has all of them."""
    return lambda asked: PullObjectResponse(
        object_found=True, object_available=True, object_content=contents[asked.object_id]
    )


@pytest.mark.parametrize("above_bytes", [2**40, 2**20], ids=["in memory", "on the disk"])
def test_arrays_of_many_chunks_are_put_together_as_flower_does(in_run: int, tmp_path: Path, above_bytes: int) -> None:
    sent, incoming = _as_sent(in_run)
    assert sum(content.startswith(b"ArrayChunk ") for content in incoming.contents.values()) >= 4
    theirs = inflate_object_from_contents(sent.metadata.message_id, dict(incoming.contents))
    served, count = SimpleNamespace(PullObject=_serving(dict(incoming.contents))), len(incoming.contents)
    incoming.contents.clear()
    objects = link.Objects(served, Node(node_id=1), Spool(tmp_path, above_bytes))
    ours = objects.fetch(in_run, incoming)
    assert ours is not None and isinstance(theirs, Message) and objects.moved == count
    assert ours.object_id == theirs.object_id == sent.object_id
    assert {k: a.data for k, a in ours.content.array_records["arrays"].items()} == {
        k: a.data for k, a in sent.content.array_records["arrays"].items()
    }
    assert not incoming.contents


def _fetched(in_run: int, data: Mapping[str, bytes], spool: Spool) -> dict[str, object]:
    _, incoming = _as_sent(in_run, data)
    served = SimpleNamespace(PullObject=_serving(dict(incoming.contents)))
    incoming.contents.clear()
    found = link.Objects(served, Node(node_id=1), spool).fetch(in_run, incoming)
    assert found is not None
    return {name: array.data for name, array in found.content.array_records["arrays"].items()}


@pytest.mark.parametrize("above_bytes", [2**40, 2**20], ids=["in memory", "on the disk"])
def test_flower_is_not_given_the_chunks_of_arrays_that_are_put_together(
    in_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above_bytes: int
) -> None:
    """It would hold them beside the arrays."""
    given: list[set[bytes]] = []

    def inflate(message_id: str, contents: dict[str, bytes], objects: dict[str, object]) -> object:
        given.append({content.partition(b" ")[0] for content in contents.values()})
        return inflate_object_from_contents(message_id, contents, objects=objects)

    monkeypatch.setattr(link, "inflate_object_from_contents", inflate)
    assert _fetched(in_run, ARRAYS, Spool(tmp_path, above_bytes)) == ARRAYS
    assert given == [{b"Message", b"RecordDict", b"ArrayRecord", b"Array", b"ConfigRecord"}]


def test_chunks_on_the_disk_are_not_written_a_second_time(
    in_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joined(*_: object) -> None:
        raise AssertionError("they lie one after the other as they came")

    monkeypatch.setattr(Spool, "joined", joined)
    data = {"a": RANDOM, "b": RANDOM[::-1]}
    found = _fetched(in_run, data, Spool(tmp_path, 2**20))
    assert found == data and all(isinstance(values, memoryview) for values in found.values())


def test_chunks_that_are_larger_than_flowers_are_kept_all_the_same(
    in_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 2**18)
    assert _fetched(in_run, ARRAYS, Spool(tmp_path, 2**20)) == ARRAYS


@pytest.mark.parametrize("harm", ["chunk gone", "chunk of another kind"])
def test_chunks_that_do_not_fit_an_array_are_refused(harm: str, in_run: int) -> None:
    sent, incoming = _as_sent(in_run)
    chunk = next(name for name, content in incoming.contents.items() if content.startswith(b"ArrayChunk "))
    if harm == "chunk gone":
        array = next(name for name, content in incoming.contents.items() if content.startswith(b"Array "))
        incoming.contents[array] = incoming.contents[array].replace(b'"arraychunk_ids": [', b'"arraychunk_ids": [77, ')
    else:
        incoming.contents[chunk] = incoming.contents[sent.metadata.message_id]
    with pytest.raises(ValueError, match="fit together|something else"):
        link.Objects(None, None, Spool()).fetch(in_run, incoming)  # type: ignore[arg-type]


def test_boards_fetch_objects_where_the_coordinators_middleware_looks_for_it() -> None:
    from flwr.superlink import main

    assert superlink.PULL_OBJECT_PATH in main.app.openapi()["paths"]


def test_a_run_gives_signs_of_life_whatever_its_server_is_busy_with(
    in_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "BEAT_S", 0.01)
    beats, enough = list[str](), threading.Event()

    def beat(request: SendTaskHeartbeatRequest) -> None:
        beats.append(type(request).__name__)
        if len(beats) > 2:
            enough.set()
        raise httpx.ConnectError("away for a moment")

    granted = SimpleNamespace(token="t", task_id=1, run=SimpleNamespace(run_id=in_run))
    served = SimpleNamespace(
        AcquireTask=lambda asked: granted,
        PullTaskInput=lambda asked: granted,
        SendTaskHeartbeat=beat,
        PushTaskOutput=lambda asked: None,
        close=lambda: None,
    )
    monkeypatch.setattr(runtime.RunLink, "_connect", lambda link, credentials: served)
    run = runtime.RunLink("127.0.0.1:1", None, b"secret")
    assert run.claim(1.0) == in_run
    assert enough.wait(60.0)  # nobody calls the link meanwhile
    run.finish(None)
    assert "run heartbeat" not in [thread.name for thread in threading.enumerate()]


def test_links_end_also_where_the_superlink_is_not_trusted_any_more() -> None:
    asked = list[str]()

    class Distrusts(ssl.SSLContext):
        def wrap_socket(self, *args: object, **options: object) -> ssl.SSLSocket:
            asked.append(str(options["server_hostname"]))
            raise PeerError("its certificate was revoked")

    context = Distrusts(ssl.PROTOCOL_TLS_CLIENT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        run = runtime.RunLink(address, context, b"secret")
        run.finish(None)
        board = link.FleetLink(address, SimpleNamespace(context=context))  # type: ignore[arg-type]
        board._node.node_id = 1
        board.close()
    assert asked == ["127.0.0.1"] * 2  # each wanted to say that it leaves
    assert run._client._client.is_closed and board._client._client.is_closed
