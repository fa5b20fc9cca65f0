from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATUS_ABSENT: _ClassVar[MemberStatus]
    MEMBER_STATUS_ALIVE: _ClassVar[MemberStatus]
    MEMBER_STATUS_SUSPECT: _ClassVar[MemberStatus]
    MEMBER_STATUS_DEAD: _ClassVar[MemberStatus]
    MEMBER_STATUS_LEFT: _ClassVar[MemberStatus]
MEMBER_STATUS_ABSENT: MemberStatus
MEMBER_STATUS_ALIVE: MemberStatus
MEMBER_STATUS_SUSPECT: MemberStatus
MEMBER_STATUS_DEAD: MemberStatus
MEMBER_STATUS_LEFT: MemberStatus

class JoinRequest(_message.Message):
    __slots__ = ("protocol_version", "name", "reached", "run_id")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    name: str
    reached: str
    run_id: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., name: _Optional[str] = ..., reached: _Optional[str] = ..., run_id: _Optional[bytes] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("refusal", "manifest", "signature", "seen_as", "rows", "name")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SEEN_AS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    manifest: bytes
    signature: bytes
    seen_as: str
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    name: str
    def __init__(self, refusal: _Optional[str] = ..., manifest: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., seen_as: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., name: _Optional[str] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("member", "status", "incarnation", "life", "address")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    member: int
    status: MemberStatus
    incarnation: int
    life: int
    address: str
    def __init__(self, member: _Optional[int] = ..., status: _Optional[_Union[MemberStatus, str]] = ..., incarnation: _Optional[int] = ..., life: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("protocol_version", "run_id", "manifest", "sender", "receiver", "number", "digest", "rows", "ping_for")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PING_FOR_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: bytes
    manifest: int
    sender: str
    receiver: str
    number: int
    digest: int
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    ping_for: PingFor
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., manifest: _Optional[int] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., number: _Optional[int] = ..., digest: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., ping_for: _Optional[_Union[PingFor, _Mapping]] = ...) -> None: ...

class PingFor(_message.Message):
    __slots__ = ("target", "timeout_ms")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    target: int
    timeout_ms: int
    def __init__(self, target: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("refusal", "unreached", "digest", "rows")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    unreached: bool
    digest: int
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, refusal: _Optional[str] = ..., unreached: bool = ..., digest: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...
