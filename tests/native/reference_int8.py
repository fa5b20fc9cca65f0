"""Integer training in plain numpy: integers as int64, floats in float32 one operation after
another, as the kernels promise."""

import math

import numpy as np

from tests.conformance.reference_common import uniform32

F = np.float32
FLOOR = F(1e-30)


def affine_of(values):
    """(scale, zero) of one sample's float32 values."""
    if not np.isfinite(values).all():
        return F(np.nan), 0
    high, low = max(values.max(initial=F(0)), F(0)), min(values.min(initial=F(0)), F(0))
    scale = max(F(high * (F(1) / F(255))) - F(low * (F(1) / F(255))), FLOOR)
    zero = int(np.rint(F(-128) - low / scale))
    return scale, min(max(zero, -128), 127)


def codes(values, scale, zero):
    if not np.isfinite(scale):
        return np.zeros(values.shape, np.int8)
    t = values * (F(1) / scale) + (F(zero) + F(128.5))
    return (np.clip(t, F(0), F(255)).astype(np.int32) - 128).astype(np.int8)


def quantise(values):
    """values float32[batch, ...] -> q, scale, zero."""
    found = [affine_of(sample) for sample in values]
    q = np.stack([codes(sample, *how) for sample, how in zip(values, found, strict=True)])
    return q, np.array([s for s, _ in found], F), np.array([z for _, z in found], np.int32)


def weight_codes(weight, axis):
    """(integer weights as int64, scales) of float32[out, in, h, w] by output (axis 0) or input
    channel (axis 1)."""
    other = tuple(k for k in range(4) if k != axis)
    scale = np.maximum(np.abs(weight).max(other) * (F(1) / F(127)), FLOOR)
    inverse = np.expand_dims(F(1) / scale, other)
    return np.clip(np.rint(weight * inverse), -127, 127).astype(np.int64), scale


def conv_sums(x, w, stride, pad, groups):
    """x int64[n, h, w, c] less its zero point, w int64[out, in / groups, kh, kw] -> int64[n, ho,
    wo, out]."""
    x = np.pad(x, ((0, 0), (pad[0], pad[0]), (pad[1], pad[1]), (0, 0)))
    outs, inputs, kh, kw = w.shape
    ho, wo = (x.shape[1] - kh) // stride[0] + 1, (x.shape[2] - kw) // stride[1] + 1
    y = np.zeros((len(x), ho, wo, outs), np.int64)
    each = outs // groups
    for g in range(groups):
        for a in range(kh):
            for b in range(kw):
                part = x[:, a : a + ho * stride[0] : stride[0], b : b + wo * stride[1] : stride[1]]
                part = part[:, :ho, :wo, g * inputs : (g + 1) * inputs]
                y[..., g * each : (g + 1) * each] += part @ w[g * each : (g + 1) * each, :, a, b].T
    return y


def conv_data_sums(g, w, shape, stride, pad, groups):
    """Its transpose: g int64[n, ho, wo, out] -> int64[n, height, width, in]."""
    n, height, width, inputs = shape
    each_in, each_out = inputs // groups, w.shape[0] // groups
    ho, wo = g.shape[1:3]
    dx = np.zeros((n, height + 2 * pad[0], width + 2 * pad[1], inputs), np.int64)
    for k in range(groups):
        outs = slice(k * each_out, (k + 1) * each_out)
        for a in range(w.shape[2]):
            for b in range(w.shape[3]):
                rows = slice(a, a + (ho - 1) * stride[0] + 1, stride[0])
                columns = slice(b, b + (wo - 1) * stride[1] + 1, stride[1])
                dx[:, rows, columns, k * each_in : (k + 1) * each_in] += g[..., outs] @ w[outs, :, a, b]
    return dx[:, pad[0] : pad[0] + height, pad[1] : pad[1] + width]


def conv_weight_sums(g, x, kernel, stride, pad, groups):
    """Sums inside each sample: int64[n, out, in / groups, kh, kw]."""
    x = np.pad(x, ((0, 0), (pad[0], pad[0]), (pad[1], pad[1]), (0, 0)))
    n, ho, wo, outs = g.shape
    each_in, each_out = x.shape[3] // groups, outs // groups
    dw = np.zeros((n, outs, each_in, *kernel), np.int64)
    for k in range(groups):
        mine = slice(k * each_out, (k + 1) * each_out)
        for a in range(kernel[0]):
            for b in range(kernel[1]):
                part = x[:, a : a + (ho - 1) * stride[0] + 1 : stride[0], b : b + (wo - 1) * stride[1] + 1 : stride[1]]
                part = part[..., k * each_in : (k + 1) * each_in]
                dw[:, mine, :, a, b] = np.einsum("nhwo,nhwi->noi", g[..., mine], part)
    return dw


def round8(g, key):
    """Gradient float32[n, ...] in 8 bits a sample: (int64, scales)."""
    q, scales = np.zeros(g.shape, np.int64), np.zeros(len(g), F)
    each = g[0].size
    for n, sample in enumerate(g):
        scales[n] = max(np.abs(sample).max() * (F(1) / F(127)), FLOOR)
        q[n] = rounded_at(sample, key, n * (each + each % 2), scales[n]).reshape(sample.shape)
    return q, scales


def round16(g):
    scales = np.maximum(np.abs(g).reshape(len(g), -1).max(1) * (F(1) / F(32512)), FLOOR)
    inverse = (F(1) / scales).reshape(-1, *[1] * (g.ndim - 1))
    return np.rint(g * inverse).astype(np.int64), scales


def evonorm(y, v, gamma, beta, groups, chunks):
    """z in float64 of y float[n, pixels, channels]: the mathematics alone."""
    n, pixels, channels = y.shape
    grouped = y.reshape(n, chunks, pixels // chunks, groups, channels // groups)
    spread = (grouped.max((2, 4)) - grouped.min((2, 4))).mean(1)
    count = max(2, pixels // chunks * (channels // groups))
    c = 0.175 * (1 + math.sqrt(math.pi * math.log(4))) / math.sqrt(2 * math.log(count))
    inverse = np.repeat(1 / (c * spread + 1e-5), channels // groups, 1)[:, None]
    return gamma * y * np.clip(v * y / 6 + 0.5, 0, 1) * inverse + beta


def evonorm_gradients(y, v, gamma, g, groups, chunks):
    """(dy, dv, dgamma, dbeta) in float64; the range's gradient in equal parts to values that
    tie."""
    n, pixels, channels = y.shape
    shape = (n, chunks, pixels // chunks, groups, channels // groups)
    grouped = y.reshape(shape)
    high, low = grouped.max((2, 4), keepdims=True), grouped.min((2, 4), keepdims=True)
    count = max(2, pixels // chunks * (channels // groups))
    c = 0.175 * (1 + math.sqrt(math.pi * math.log(4))) / math.sqrt(2 * math.log(count))
    inverse = 1 / (c * (high - low).mean(1) + 1e-5)  # [n, 1, groups, 1]
    wide = np.repeat(inverse[:, 0, :, 0], channels // groups, 1)[:, None]
    a = v * y / 6 + 0.5
    h, inside = np.clip(a, 0, 1), (a > 0) & (a < 1)
    t = np.where(inside, y, 0)
    dy = g * gamma * wide * (h + v / 6 * t)
    of_inverse = (g * gamma * y * h).reshape(shape).sum((1, 2, 4))[:, None, None, :, None]
    of_range = -c / chunks * inverse[:, None] ** 2 * of_inverse
    is_high, is_low = grouped == high, grouped == low
    ties = is_high / is_high.sum((2, 4), keepdims=True) - is_low / is_low.sum((2, 4), keepdims=True)
    dy = dy + (of_range * ties).reshape(y.shape)
    return dy, (g * gamma * wide * y * t / 6).sum((0, 1)), (g * y * h * wide).sum((0, 1)), g.sum((0, 1))


# Sequences: attention, layer norm, GELU.

STREAM = 0x9E3779B97F4A7C15


def exponential(x):
    """e^x of float32 from -30 to 0, one operation after another."""
    magic = F(12582912.0)
    whole = (x * F(1.44269504) + magic) - magic
    r = (x - whole * F(0.693359375)) + whole * F(2.12194440e-4)
    p = np.full_like(x, F(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + F(c)
    return np.ldexp(p * (r * r) + r + F(1), whole.astype(np.int32)).astype(F)


def padded(keys):
    return -(-keys // 16) * 16


def numerators(q, k, factor, seen):
    """int64[queries, keys] of one head, q and k int64 less their zero points; seen bool[queries,
    keys]."""
    scores = q @ k.T
    most = np.where(seen, scores, np.iinfo(np.int64).min).max(1, keepdims=True)
    below = np.where(seen, scores - most, 0).astype(F) * F(factor)
    e = exponential(np.maximum(below, F(-30))) * F(255) + F(0.5)
    return np.where(seen, e.astype(np.int64), 0)


def heads_of(maps, tokens, heads, width):
    """int64[batch, heads, tokens, width] less the zero points, of `Maps`."""
    values = maps.q.reshape(-1, tokens, heads, width).astype(np.int64) - maps.zero.reshape(-1, 1, 1, 1)
    return values.swapaxes(1, 2)


def rounded_at(values, key, first, scale):
    """round8 of values [n] that lie from element `first` on."""
    u = (uniform32(key, first, values.size) >> np.uint32(8)).astype(np.int64)
    steps = np.clip((values.ravel() * (F(1) / scale)) * F(2**24), F(-127 * 2**24), F(127 * 2**24)).astype(np.int64)
    return ((steps + u) >> 24).reshape(values.shape)


def scale8(values):
    return max(np.abs(values).max() * (F(1) / F(127)), FLOOR)


def attention(call, g):
    """(out, dq, dk, dv) of an `AttentionPass`; g float32[batch, queries, heads * width]."""
    s, (mb, mh, mq) = call.shape, call.mask
    q, k, v = (heads_of(m, t, s.heads, s.width) for m, t in ((call.q, s.queries), (call.k, s.keys), (call.v, s.keys)))
    seen = np.ones((1, 1, 1, s.keys), bool) if call.seen is None else call.seen.reshape(mb, mh, mq, s.keys) != 0
    seen = np.broadcast_to(seen, (s.batch, s.heads, s.queries, s.keys))
    root, rescale = F(1 / np.sqrt(np.float64(s.width))), F(1 / (1 - call.dropped))
    wide_keys = padded(s.keys)
    out = np.zeros((s.batch, s.queries, s.heads, s.width), F)
    dq, dk, dv = np.zeros_like(out), *(np.zeros((s.batch, s.keys, s.heads, s.width), F) for _ in range(2))
    key = [(call.key + n * STREAM) % 2**64 for n in range(4)]
    for n in range(s.batch):
        sq, sk, sv = (F(m.scale[n]) for m in (call.q, call.k, call.v))
        size = s.queries * s.heads * s.width
        sg = scale8(g[n])
        g8 = rounded_at(g[n], key[0], n * (size + size % 2), sg).reshape(s.queries, s.heads, s.width)
        for h in range(s.heads):
            place = n * s.heads + h
            e = numerators(q[n, h], k[n, h], min(sq * sk * root, F(3e38)), seen[n, h])
            kept = e.copy()
            if call.dropped:
                u = uniform32(key[3], place * s.queries * wide_keys, s.queries * wide_keys)
                below = u.reshape(s.queries, wide_keys)[:, : s.keys] < int(call.dropped * 2**32)
                kept[below] = 0
            total = e.sum(1)
            some = np.maximum(total, 1).astype(F)
            inverse = np.where(total > 0, rescale / some, F(0)).astype(F)
            out[n, :, h] = (kept @ v[n, h]).astype(F) * (sv * inverse)[:, None]

            own = g[n].reshape(s.queries, s.heads, s.width)[:, h] * inverse[:, None]
            scale = scale8(own)
            first = place * (own.size + own.size % 2)
            dv[n, :, h] = scale * (kept.T @ rounded_at(own, key[1], first, scale)).astype(F)

            of_p = g8[:, h] @ v[n, h].T
            mean = np.where(total > 0, (kept * of_p).sum(1) / np.maximum(total, 1), 0).astype(F)[:, None]
            unit = np.where(total > 0, F(sg * sv * rescale * root) / some, F(0)).astype(F)[:, None]
            d = e.astype(F) * unit * (np.where(kept == 0, F(0), of_p.astype(F)) - mean)
            d = np.pad(d, ((0, 0), (0, wide_keys - s.keys)))
            scale = scale8(d)
            d8 = rounded_at(d, key[2], place * d.size, scale)[:, : s.keys]
            dq[n, :, h] = (d8 @ k[n, h]).astype(F) * (scale * sk)
            dk[n, :, h] = (scale * sq) * (d8.T @ q[n, h]).astype(F)
    return out, dq, dk, dv


def layernorm(y, gamma, beta, factor, epsilon, chunks):
    """In float64; y [..., features]."""
    parts = y.reshape(*y.shape[:-1], chunks, -1)
    spread = (parts.max(-1) - parts.min(-1)).sum(-1)[..., None]
    return gamma * (y - y.mean(-1, keepdims=True)) / (spread * factor + epsilon) + beta
