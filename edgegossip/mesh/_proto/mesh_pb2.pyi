from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RefusalCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_CODE_UNSPECIFIED: _ClassVar[RefusalCode]
    REFUSAL_CODE_PROTOCOL_VERSION: _ClassVar[RefusalCode]
    REFUSAL_CODE_RUN_ID: _ClassVar[RefusalCode]
    REFUSAL_CODE_UNKNOWN_SENDER: _ClassVar[RefusalCode]
    REFUSAL_CODE_WRONG_RECEIVER: _ClassVar[RefusalCode]
    REFUSAL_CODE_OVERSIZE: _ClassVar[RefusalCode]
    REFUSAL_CODE_MALFORMED: _ClassVar[RefusalCode]
    REFUSAL_CODE_SUPERSEDED: _ClassVar[RefusalCode]
    REFUSAL_CODE_CLOSED: _ClassVar[RefusalCode]
    REFUSAL_CODE_IDENTITY: _ClassVar[RefusalCode]
    REFUSAL_CODE_AGREEMENT: _ClassVar[RefusalCode]
REFUSAL_CODE_UNSPECIFIED: RefusalCode
REFUSAL_CODE_PROTOCOL_VERSION: RefusalCode
REFUSAL_CODE_RUN_ID: RefusalCode
REFUSAL_CODE_UNKNOWN_SENDER: RefusalCode
REFUSAL_CODE_WRONG_RECEIVER: RefusalCode
REFUSAL_CODE_OVERSIZE: RefusalCode
REFUSAL_CODE_MALFORMED: RefusalCode
REFUSAL_CODE_SUPERSEDED: RefusalCode
REFUSAL_CODE_CLOSED: RefusalCode
REFUSAL_CODE_IDENTITY: RefusalCode
REFUSAL_CODE_AGREEMENT: RefusalCode

class ExchangeRequest(_message.Message):
    __slots__ = ("hello", "chunk", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    chunk: Chunk
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class ExchangeResponse(_message.Message):
    __slots__ = ("welcome", "refusal", "ack")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    ack: Ack
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "run_id", "sender", "receiver", "session", "agreement")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: bytes
    sender: str
    receiver: str
    session: int
    agreement: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., session: _Optional[int] = ..., agreement: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session", "completed", "partial", "partial_received")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    session: int
    completed: int
    partial: int
    partial_received: int
    def __init__(self, session: _Optional[int] = ..., completed: _Optional[int] = ..., partial: _Optional[int] = ..., partial_received: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "reason", "transfer")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    code: RefusalCode
    reason: str
    transfer: int
    def __init__(self, code: _Optional[_Union[RefusalCode, str]] = ..., reason: _Optional[str] = ..., transfer: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("transfer", "offset", "total", "acknowledge", "data")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    offset: int
    total: int
    acknowledge: bool
    data: bytes
    def __init__(self, transfer: _Optional[int] = ..., offset: _Optional[int] = ..., total: _Optional[int] = ..., acknowledge: bool = ..., data: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ack(_message.Message):
    __slots__ = ("transfer", "received", "held_us")
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    transfer: int
    received: int
    held_us: int
    def __init__(self, transfer: _Optional[int] = ..., received: _Optional[int] = ..., held_us: _Optional[int] = ...) -> None: ...
