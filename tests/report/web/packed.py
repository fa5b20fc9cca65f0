"""What is in a page's data, as its script reads it (data.js)."""

import json
import struct
import zlib

import numpy as np

from edgegossip.report.web.view import TICKS_A_SECOND


def unpack(data):
    """Return the document and the columns that `view.pack` was given."""
    plain = zlib.decompress(data)
    (size,) = struct.unpack_from("<I", plain)
    document, base = json.loads(plain[4 : 4 + size]), 4 + size
    columns = {}
    for node, named in document.pop("blocks").items():
        columns[node] = {name: _column(plain, base, *place) for name, place in named.items()}
        if "t_s" in columns[node]:
            columns[node]["t_s"] = columns[node]["t_s"] / TICKS_A_SECOND
    return document, columns


def _column(plain, base, offset, rows, width):
    planes = np.frombuffer(plain, np.uint8, rows * width, base + offset).reshape(width, rows)
    return np.ascontiguousarray(planes.T).view(f"<f{width}").reshape(rows)
