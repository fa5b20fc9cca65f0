"""The rivals do their codec's job: right values or right statistics, and the size that they should
have."""

import numpy as np
import pytest
import torch

from edgegossip import codecs
from edgegossip.codecs import Ctx, relative_error
from edgegossip.codecs.levels import geometric_levels
from lab.bench.cases import default_cases, description
from lab.bench.inputs import synthetic
from lab.bench.numpy_elias import NumpyElias, omega
from lab.bench.torch_codecs import probabilities, rival, tuned_rival
from lab.bench.torch_quantisers import can_compile, decode_model, encode_model, pack, size_bytes, unpack
from lab.papers.bounds import normalized_variance

DATA = synthetic(60_000, seed=5)
PARAMS = {
    "qsgd": {"bits": 4, "bucket": 512},
    "qsgd-inf": {"bits": 8, "bucket": 512},
    "elastiquant": {"bits": 4, "bucket": 512},
    "elasticl": {"s0": 7},
    "terngrad": {"clip": 0.0},
    "eden": {"bits": 3},
    "randk": {"ratio": 0.1},
    "atomo": {"rank": 3},
}


def through(codec):
    x = torch.from_numpy(DATA.x)
    parts = encode_model(codec, x, DATA.layout)
    return decode_model(codec, parts, torch.empty_like(x), DATA.layout).numpy(), parts


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 8, 12, 16])
@pytest.mark.parametrize("n", [1, 7, 64])
def test_packing(bits, n):
    codes = torch.randint(0, 1 << bits, (n,), dtype=torch.int32)
    codes = codes if bits > 8 else codes.to(torch.uint8)
    packed = pack(codes, bits)
    assert torch.equal(unpack(packed, bits, n), codes)
    width = next(w for w in (1, 2, 4, 8, 16) if w >= bits)
    assert packed.numel() * packed.element_size() == -(-n * width // 8)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "minmax8"])
def test_same_values_as_the_product(name):
    codec = codecs.get(name)
    body, _ = codec.encode(DATA.x, codec.init(DATA.layout), Ctx(key=1, round=0))
    ours = codec.decode(body, DATA.layout)
    theirs, parts = through(rival(name, {}))
    assert relative_error(ours, theirs) < (2e-3 if name == "minmax8" else 1e-12)  # ties of rounding
    assert size_bytes(parts) == len(body)


BOTH = [(find, name) for find in (rival, tuned_rival) for name in PARAMS if find(name, PARAMS[name]) is not None]


@pytest.mark.parametrize(("find", "name"), BOTH)
def test_stochastic_rivals_are_unbiased(find, name):
    torch.manual_seed(1)
    codec = find(name, PARAMS[name])
    draws = 12
    decoded = np.mean([through(codec)[0].astype(np.float64) for _ in range(draws)], axis=0)
    one, _ = through(codec)
    x = DATA.x.astype(np.float64)
    single = np.sum((one - x) ** 2)
    assert single > 0
    assert np.sum((decoded - x) ** 2) < 1.6 * single / draws
    assert abs(decoded @ x / (x @ x) - 1) < 5 * np.sqrt(single / draws / (x @ x))


@pytest.mark.parametrize("find", [rival, tuned_rival])
def test_levels_and_signs(find):
    x = torch.tensor([0.0, 3.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    uniform = find("qsgd", {"bits": 4, "bucket": 8})
    for _ in range(20):
        y = uniform.decode(uniform.encode(x, 0), x.shape)
        assert ((y * 7 / 5).frac().abs() < 1e-5).logical_or((y * 7 / 5).frac().abs() > 1 - 1e-5).all()
        assert y[0] == 0 and y[1] >= 0 and y[2] <= 0 and ((y - x).abs() <= 5 / 7 + 1e-5).all()
    sign = rival("signsgd", {})
    assert sign.decode(sign.encode(x, 0), x.shape).tolist() == pytest.approx([7 / 8, 7 / 8, -7 / 8, *[7 / 8] * 5])
    zeros = torch.zeros(9)
    for name in ("qsgd", "elastiquant", "terngrad", *(("co3", "minmax8", "signsgd") if find is rival else ())):
        codec = find(name, {"bits": 4, "bucket": 8, "clip": 2.5})
        assert torch.equal(codec.decode(codec.encode(zeros, 0), zeros.shape), zeros), name


def test_co3_has_the_error_of_its_grid():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(
        (rng.standard_gamma(1 / 0.6, 100_000) ** (1 / 0.6) * rng.choice([-1, 1], 100_000)).astype("f4")
    )
    codec = rival("co3", {})
    y = codec.decode(codec.encode(x, 0), x.shape)
    assert len(torch.unique(y)) == 11
    assert 0.15 < relative_error(x.numpy(), y.numpy()) < 0.45


def test_topk_and_dgc():
    v = torch.tensor([0.1, -5.0, 0.2, 4.0, 0.3, 0.0, 0.0, 0.0])
    topk = rival("topk", {"ratio": 0.25})
    assert topk.decode(topk.encode(v, 0), v.shape).tolist() == [0, -5, 0, 4, 0, 0, 0, 0]
    dgc = rival("dgc", {"ratio": 0.125, "momentum": 0.5})
    sent = [dgc.decode(dgc.encode(v, 0), v.shape) for _ in range(2)]
    assert sent[0].nonzero().tolist() == [[1]] and sent[0][1] == -5
    # Round 2: u = .5 u + v, the sum of u: 4 + 6 = 10 at index 3, while index 1 starts afresh at -5.
    assert sent[1].nonzero().tolist() == [[3]] and sent[1][3] == 10


def test_error_feedback_keeps_what_was_lost():
    v = torch.tensor([1.0, -2.0, 0.5, 4.0])
    codec = rival("signsgd", {"feedback": 1.0})
    rounds = 30
    total = sum(codec.decode(codec.encode(v, 0), v.shape) for _ in range(rounds))
    assert ((total / rounds - v).abs() < 20 / rounds).all()


def test_low_rank():
    s = torch.tensor([10.0, 1.0, 1.0, 0.0])
    p = probabilities(s, 2)
    assert p.tolist() == pytest.approx([1.0, 0.5, 0.5, 0.0])
    matrix = torch.outer(torch.arange(1.0, 21), torch.arange(1.0, 31))
    power = rival("powersgd", {"rank": 2})
    y = power.decode(power.encode(matrix, 0), matrix.shape)
    assert torch.allclose(y, matrix, rtol=1e-3, atol=1e-2)
    vector = torch.arange(5.0)
    assert torch.equal(power.decode(power.encode(vector, 1), vector.shape), vector)


def test_powersgd_keeps_a_share_of_its_error():
    """Without a memory every message is of the matrix alone; with all of it their mean comes closer
    to the matrix."""
    matrix = torch.from_numpy(np.random.default_rng(3).standard_normal((20, 30)).astype("f4"))
    missing = {}
    for decay in (0.0, 0.5, 1.0):
        torch.manual_seed(0)
        codec = rival("powersgd", {"rank": 2, "values": "fp32", "decay": decay})
        sent = [codec.decode(codec.encode(matrix, 0), matrix.shape) for _ in range(40)]
        missing[decay] = float((torch.stack(sent).mean(0) - matrix).norm() / matrix.norm())
    assert missing[1.0] < 0.5 * missing[0.5] and missing[0.5] < missing[0.0]


def test_randk_scales_only_to_be_unbiased():
    x = torch.arange(1.0, 101)
    for unbiased, factor in ((True, 10.0), (False, 1.0)):
        codec = rival("randk", {"ratio": 0.1, "values": "fp32", "unbiased": unbiased})
        y = codec.decode(codec.encode(x, 0), x.shape)
        assert y.count_nonzero() == 10 and torch.equal(y[y != 0], factor * x[y != 0])


@pytest.mark.slow
def test_compiled_rivals_send_the_same_codes():
    """But where a value lies on a threshold to the last bit."""
    if not can_compile():
        pytest.skip("torch.compile needs a C++ compiler")
    params, sent = {"bits": 4, "bucket": 512}, []
    for compiled in (False, True):
        torch.manual_seed(3)
        codec = tuned_rival("qsgd", params, compiled=compiled)
        sent.append(codec.encode(torch.from_numpy(DATA.x), 0)[0])
    assert (sent[0] == sent[1]).float().mean() > 0.999


@pytest.mark.parametrize(
    ("name", "changed"),
    [("powersgd", {"values": "fp16"}), ("dgc", {"clip": 0.5}), ("dgc", {"warmup_rounds": 3})],
)
def test_no_rival_with_parameters_that_it_cannot_follow(name, changed):
    _, defaults = description(codecs.get(name))
    assert rival(name, defaults) is not None
    assert rival(name, {**defaults, **changed}) is None


def test_every_parameter_of_a_codec_reaches_its_rival_or_costs_it():
    """A rival that drops a parameter would be compared with a codec that does something else."""
    asked = set()

    class Params(dict):
        def __getitem__(self, key):
            asked.add(key)
            return super().__getitem__(key)

        def get(self, key, default=None):
            asked.add(key)
            return super().get(key, default)

    without_effect = {"stage", "smoothing"}  # torch codes nothing; elasticl's levels are those of the first message
    for case in default_cases():
        asked.clear()
        name, params = description(case.build(case.coders[0] if case.coders else None))
        assert rival(name, Params(params)) is not None
        assert set(params) <= asked | without_effect, name


def test_omega_words():
    words = {1: "0", 2: "100", 3: "110", 4: "101000", 7: "101110", 8: "1110000", 16: "10100100000"}
    assert {k: omega(k) for k in words} == words


@pytest.mark.parametrize("levels", [(), (0.0, 0.125, 0.25, 0.5, 1.0)])
@pytest.mark.parametrize("n", [1, 511, 40_000])
def test_numpy_elias(levels, n):
    x = DATA.x[:n]
    codec = NumpyElias(7, 512, levels)
    pieces = codec.encode(x)
    y = codec.decode(pieces, np.empty_like(x))
    rows = np.pad(x, (0, -n % 512)).reshape(-1, 512)
    norms = np.repeat(np.sqrt((rows.astype(float) ** 2).sum(1)), 512)[:n]
    grid = np.array(levels or np.arange(8) / 7)
    ratio = np.abs(y) / np.maximum(norms, 1e-30)
    nearest = np.abs(ratio[:, None] - grid[None]).min(1)
    assert nearest.max() < 1e-5
    assert (np.sign(y) * np.sign(x) >= 0).all()
    step = np.diff(grid).max() * norms
    assert (np.abs(y - x) <= step * 1.00001).all()
    if n > 10_000:
        assert abs(float(y @ x) / float(x @ x) - 1) < 0.2 and np.count_nonzero(y) > 100


@pytest.mark.parametrize(
    ("name", "bits", "norm", "levels"),
    [
        ("qsgd", 4, "l2", np.arange(8) / 7),
        ("qsgd-inf", 4, "linf", np.arange(8) / 7),
        ("elastiquant", 4, "l2", geometric_levels(6, 0.5)),
        ("elastiquant", 8, "l2", geometric_levels(126, 0.9)),
    ],
)
@pytest.mark.parametrize("find", [rival, tuned_rival])
def test_variance_is_the_formula_s(name, bits, norm, levels, find):
    torch.manual_seed(2)
    x = synthetic_tensor(1 << 18)
    codec = find(name, {"bits": bits, "bucket": 512})
    y = codec.decode(codec.encode(torch.from_numpy(x), 0), torch.Size(x.shape)).numpy()
    expected = normalized_variance(levels, x, 512, norm)
    assert relative_error(x, y) ** 2 == pytest.approx(expected, rel=0.05)
    if name != "qsgd-inf" and bits == 4 and find is rival:
        elias = NumpyElias(7, 512, tuple(levels.tolist()) if name == "elastiquant" else ())
        assert relative_error(x, elias.decode(elias.encode(x), np.empty_like(x))) ** 2 == pytest.approx(
            expected, rel=0.05
        )


def synthetic_tensor(n):
    rng = np.random.default_rng(7)
    return (rng.standard_gamma(1 / 0.6, n) ** (1 / 0.6) * rng.choice([-1, 1], n)).astype(np.float32)
