"""Writes golden/<codec>.json: `python -m tests.conformance.regenerate`.

Golden bodies come from reference.py, not from the codecs. A change of a file that git shows is a
change of the wire format: boards of the last release would no longer understand this one, so it
needs a new codec id.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from tests.conformance.reference import PARAMS, REFERENCES, Shapes

HERE = Path(__file__).parent
LONG = "long, "  # begins names of inputs with so many values that the hash of what is decoded will do
BIG = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)


def inputs() -> dict[str, tuple[Shapes, np.ndarray]]:
    """Name -> shapes of the tensors and float32[n]. Values are fixed here; random ones are written
    out in the files."""
    rng = np.random.default_rng(20240229)
    normal = rng.standard_normal(48)
    fixed: dict[str, tuple[Shapes, list[float]]] = {
        "no values": (((0,),), []),
        "one value": (((),), [-1.25]),
        "zeros": (((7,),), [0.0] * 7),
        "signed zeros": (((4,),), [-0.0, 0.0, -0.0, 1.0]),
        "constant": (((5,),), [0.1] * 5),
        "constant beside others": (((3,), (0, 2), (2, 2)), [-3.7] * 3 + [1.0, 2.0, 3.0, 4.0]),
        "ramp": (((16,),), [k / 8 for k in range(-8, 8)]),
        "halves of a step": (((256,),), [k - 0.5 for k in range(256)]),
        "ties of binary16": (((8,),), [1 + k * 2.0**-11 for k in range(-1, 7)]),
        "subnormal in binary16": (((6,),), [2.0**-24, 2.0**-25, 3 * 2.0**-25, -(2.0**-26), 1.7e-5, 6e-8]),
        "denormal": (((5,),), [TINY, -TINY, 3 * TINY, 1e-39, -2e-40]),
        "largest of binary16": (((6,),), [65504.0, 65519.0, 65520.0, -65536.0, 1e5, -65503.0]),
        "huge": (((4,),), [BIG, -BIG, BIG / 2, 0.0]),
        "small on a large offset": (((6,),), [1e6 + k / 16 for k in range(6)]),
        "layers": (((4, 6), (6,), (6, 2), (), (5,)), (normal * np.repeat([0.1, 1e-3, 3.0, 1.0], 12)).tolist()),
        "one outlier": (((12,),), [*(normal[:11] * 1e-3), 50.0]),
    }
    return {name: (shapes, np.array(values, np.float32)) for name, (shapes, values) in fixed.items()}


def coded_inputs() -> dict[str, tuple[Shapes, np.ndarray]]:
    """The same for the coders whose code tables tensors of fewer than 512 values cannot have."""
    rng = np.random.default_rng(20240301)
    heavy = rng.standard_normal(2100) ** 3 * 0.01
    return {
        "zeros": (((512,),), np.zeros(512, np.float32)),
        "layers": (((24, 25), (7,), (520,)), np.float32(heavy[:1127] * np.repeat([1.0, 50.0, 0.2], [600, 7, 520]))),
        "sparse": (((20, 30),), np.float32(heavy[:600] * (rng.random(600) < 0.02))),
        "four streams": (((2, 1050),), np.float32(heavy)),
    }


def stepped_inputs() -> dict[str, tuple[Shapes, np.ndarray]]:
    """The first ones, and more for the coder whose models follow quiet and loud blocks; halves, as
    above."""
    rng = np.random.default_rng(20240303)
    loud = np.exp2(rng.integers(-6, 8, 116).repeat(64))
    wild = np.float32(np.round(rng.standard_normal(7424) ** 3 * loud) / 64)
    even = np.float32(np.round(rng.standard_normal(4000) * 8) / 8)
    loud = np.concatenate([np.ones(5), np.tile(np.exp2(rng.integers(-6, 8, 72)), 12), np.ones(21)])
    loud = np.concatenate([loud, np.tile(np.exp2(rng.integers(-4, 5, 100)), 9), np.ones(24)])
    columns = np.round(rng.standard_normal(loud.size) * loud * 8) / 8
    rows = np.abs(wild.reshape(-1, 64)[:80]) * rng.choice([-1, 1], 80)[:, None]
    return inputs() | {
        LONG + "quiet and loud": (((40, 100), (7,), (3417,)), wild),
        LONG + "even": (((4000,),), even),
        LONG + "a sign a row": (((80, 64),), np.float32(rows.flatten())),
        LONG + "loud columns": (((5,), (12, 8, 9), (3, 7), (9, 100), (8, 3)), np.float32(columns)),
        "rare": (((2000,),), wild[:2000] * (wild[:2000] > 3)),
    }


def main() -> None:
    (HERE / "golden").mkdir(exist_ok=True)
    for codec, (body_of, values_of) in REFERENCES.items():
        cases = []
        for chosen in PARAMS.get(codec, ({},)):
            params = {key: value for key, value in chosen.items() if key != "decode_only"}
            inputs_of = {"huffman": coded_inputs, "runs": coded_inputs}
            plain = stepped_inputs if codec in ("dither", "deadzone") else inputs
            for name, (shapes, x) in inputs_of.get(str(params.get("stage")), plain)().items():
                body = body_of(x, shapes, **params)
                case = {
                    "case": name + "".join(f" {key}={value}" for key, value in params.items()),
                    "params": params,
                    "shapes": shapes,
                    "x": x.astype("<f4").tobytes().hex(),
                    "body": body.hex(),
                    "decoded": np.array(values_of(body, shapes, **params), "<f4").tobytes().hex(),
                }
                if not params:
                    del case["params"]
                if "decode_only" in chosen:
                    case |= {"params": params | {"stage": "auto"}, "decode_only": True}
                if name.startswith(LONG):
                    decoded = bytes.fromhex(str(case.pop("decoded")))
                    case["decoded_sha256"] = hashlib.sha256(decoded).hexdigest()
                cases.append(case)
        (HERE / "golden" / f"{codec}.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
