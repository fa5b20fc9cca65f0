"""What Flower's SuperNode writes into the head of each request, without importing half a web server to write it: Flower's own
interceptors come with FastAPI, 19 MB on every board."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import httpx
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_COMPONENT_NAME_METADATA_KEY,
    FLWR_PACKAGE_NAME_METADATA_KEY,
    FLWR_PACKAGE_VERSION_METADATA_KEY,
)
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.version import package_name, package_version


class Signature:
    """A key pair (EC P-384) of its own, and an interceptor that signs the time with it."""

    def __init__(self) -> None:
        self._private, public = generate_key_pairs()
        self.public = public_key_to_bytes(public)  # PEM
        self._always = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            FLWR_PACKAGE_NAME_METADATA_KEY: package_name,
            FLWR_PACKAGE_VERSION_METADATA_KEY: package_version,
            FLWR_COMPONENT_NAME_METADATA_KEY: "SuperNode",
        }

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        timestamp = now().isoformat()
        signature = b64encode(sign_message(self._private, timestamp.encode())).decode()
        headers = {TIMESTAMP_HEADER: timestamp, FLEET_HTTP_SIGNATURE_HEADER: signature}
        context.request.headers.update(self._always | headers)
        return call_next(context)
