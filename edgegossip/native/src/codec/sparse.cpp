#include "codec/sparse.hpp"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "codec/gaps.hpp"
#include "codec/section.hpp"
#include "codec/select.hpp"

namespace edgegossip {
namespace {

constexpr int64_t PIECE = 1024;  // values converted at a time

// The tensor's key of the counter-based generator: SplitMix64's finaliser.
uint64_t tensor_key(uint64_t key, int64_t tensor) {
    uint64_t z = key + 0x9E3779B97F4A7C15ull * (uint64_t(tensor) + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// What happens to the sender's own vectors where a value was sent.
struct Sent {
    const FloatForm& form;
    float* zero;
    float* rest;

    void mark(const uint32_t* index, const uint8_t* values, int64_t count) const {
        if (zero != nullptr)
            for (int64_t i = 0; i < count; i++) zero[index[i]] = 0.0f;
        if (rest == nullptr) return;
        float arrives[PIECE];
        for (int64_t first = 0; first < count; first += PIECE) {
            const int64_t n = std::min(PIECE, count - first);
            form.decode(values + form.bytes * first, n, arrives, false, 1.0f);
            for (int64_t i = 0; i < n; i++) rest[index[first + i]] -= arrives[i];
        }
    }
};

// Values of all positions; those that are not among the k largest are zero.
bool encode_all(const Source& source, int64_t k, int threads, const Sent& sent, uint8_t* values) {
    const int64_t bytes = sent.form.bytes;
    std::memset(values, 0, size_t(bytes * source.n));
    return select_largest(source, k, threads, [&](const uint32_t* index, const uint32_t* bits, int64_t count) {
        uint8_t piece[4 * PIECE];
        for (int64_t first = 0; first < count; first += PIECE) {
            const int64_t n = std::min(PIECE, count - first);
            sent.form.encode(reinterpret_cast<const float*>(bits + first), n, piece);
            for (int64_t i = 0; i < n; i++) std::memcpy(values + bytes * index[first + i], piece + bytes * i, size_t(bytes));
            sent.mark(index + first, piece, n);
        }
    });
}

// Positions grow from the start; values are put where they cannot meet and moved up to them at the end.
int64_t encode_some(const Source& source, int64_t k, Positions how, int threads, const Sent& sent, uint8_t* where) {
    const int64_t map_bytes = (source.n + 7) / 8;
    uint8_t* const values = where + (how == BITMAP ? map_bytes : gaps_capacity(source.n, k));
    uint8_t* next = values;
    GapWriter gaps(where, source.n, k);
    if (how == BITMAP) std::memset(where, 0, size_t(map_bytes));
    const bool finite = select_largest(source, k, threads, [&](const uint32_t* index, const uint32_t* bits, int64_t count) {
        if (how == BITMAP)
            for (int64_t i = 0; i < count; i++) where[index[i] >> 3] = uint8_t(where[index[i] >> 3] | 1u << (index[i] & 7));
        else
            gaps.put(index, count);
        sent.form.encode(reinterpret_cast<const float*>(bits), count, next);
        sent.mark(index, next, count);
        next += sent.form.bytes * count;
    });
    if (!finite) return -1;
    const int64_t used = how == BITMAP ? map_bytes : gaps.finish();
    std::memmove(where + used, values, size_t(next - values));
    return used + (next - values);
}

void add(float* out, float value, bool accumulate, float weight) { *out = accumulate ? *out + weight * value : value; }

// Writes values, in order, to the positions that it is told.
class Scatter {
public:
    Scatter(const Kernels& kernels, const Section& s, float* out, bool accumulate, float weight)
        : form_(form_of(kernels, s.form)), next_(s.values), out_(out), accumulate_(accumulate), weight_(weight) {}

    void operator()(const uint32_t* index, int64_t count) {
        float values[PIECE];
        for (int64_t first = 0; first < count; first += PIECE) {
            const int64_t n = std::min(PIECE, count - first);
            form_.decode(next_, n, values, false, 1.0f);
            next_ += form_.bytes * n;
            for (int64_t i = 0; i < n; i++) add(out_ + index[first + i], values[i], accumulate_, weight_);
        }
    }

private:
    const FloatForm& form_;
    const uint8_t* next_;
    float* out_;
    bool accumulate_;
    float weight_;
};

void decode_section(const Kernels& kernels, const Section& s, uint64_t key, float* out, bool accumulate, float weight, int threads) {
    if (s.positions == ALL) {
        form_of(kernels, s.form).decode(s.values, s.n, out, accumulate, weight);
        return;
    }
    if (!accumulate) std::memset(out, 0, 4 * size_t(s.n));
    Scatter scatter(kernels, s, out, accumulate, weight);
    if (s.positions == DRAWN)
        select_largest({&kernels, nullptr, key, s.n}, s.k, threads,
                       [&](const uint32_t* index, const uint32_t*, int64_t count) { scatter(index, count); });
    else
        for_each_position(s, [&](const uint32_t* index, int64_t count, int64_t) { scatter(index, count); });
}

// Both families of bodies: all sections are read and checked first, then read again and written.
Verdict decode(const Kernels& kernels, const uint8_t* body, int64_t start, int64_t bytes, const Model& model, bool drawn,
               uint64_t seed, float* out, bool accumulate, float weight, int threads) {
    Section s;
    int64_t at = start;
    for (int64_t k = 0; k < model.tensors; k++) {
        if (model.size(k) == 0) continue;
        const SparseFault fault = read_section(kernels, body, bytes, model.size(k), drawn, &at, &s);
        if (fault != FAULT_NONE) return {k, fault};
    }
    if (at != bytes) return {model.tensors, FAULT_SIZE};
    at = start;
    for (int64_t k = 0; k < model.tensors; k++) {
        if (model.size(k) == 0) continue;
        const SparseFault fault = read_section(kernels, body, bytes, model.size(k), drawn, &at, &s);
        if (fault != FAULT_NONE) return {k, fault};  // somebody writes to the body meanwhile
        decode_section(kernels, s, tensor_key(seed, k), out + model.offsets[k], accumulate, weight, threads);
    }
    return {-1, FAULT_NONE};
}

float saturated(float v) { return v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v; }

}  // namespace

int64_t sparse_capacity(const Model& model, const int64_t* counts, int32_t form) {
    int64_t total = 16;
    for (int64_t k = 0; k < model.tensors; k++) {
        const int64_t n = model.size(k), chosen = counts[k], positions = choose_positions(n, chosen, form);
        if (n == 0) continue;
        const int64_t where = positions == GAPS ? gaps_capacity(n, chosen) : positions == BITMAP ? (n + 7) / 8 : 0;
        total += HEAD_BYTES + where + form_bytes(form) * (positions == ALL ? n : chosen);
    }
    return total;
}

int64_t topk_encode(const Kernels& kernels, const float* x, const Model& model, const int64_t* counts, int32_t form,
                    int threads, float* zero, float* rest, uint8_t* body) {
    const FloatForm& values = form_of(kernels, form);
    uint8_t* out = body;
    for (int64_t k = 0; k < model.tensors; k++) {
        const int64_t n = model.size(k), start = model.offsets[k];
        if (n == 0) continue;
        const Source source{&kernels, x + start, 0, n};
        const Sent sent{values, zero == nullptr ? nullptr : zero + start, rest == nullptr ? nullptr : rest + start};
        const Positions how = choose_positions(n, counts[k], form);
        out += write_head(how, form, counts[k], out);
        if (how == ALL) {
            if (!encode_all(source, counts[k], threads, sent, out)) return -1 - k;
            out += form_bytes(form) * n;
            continue;
        }
        const int64_t used = encode_some(source, counts[k], how, threads, sent, out);
        if (used < 0) return -1 - k;
        out += used;
    }
    return out - body;
}

int64_t randk_encode(const Kernels& kernels, const float* x, const Model& model, const int64_t* counts, int32_t form,
                     bool unbiased, uint64_t seed, int threads, uint8_t* body) {
    const FloatForm& values = form_of(kernels, form);
    const int64_t bad = kernels.general.first_nonfinite(x, model.offsets, model.tensors);
    if (bad >= 0) return -1 - bad;
    std::memcpy(body, &seed, 8);
    uint8_t* out = body + 8;
    for (int64_t k = 0; k < model.tensors; k++) {
        const int64_t n = model.size(k);
        const float* const tensor = x + model.offsets[k];
        if (n == 0) continue;
        out += write_head(counts[k] == n ? ALL : DRAWN, form, counts[k], out);
        if (counts[k] == n) {
            values.encode(tensor, n, out);
            out += values.bytes * n;
            continue;
        }
        const float scale = unbiased ? float(double(n) / double(counts[k])) : 1.0f;
        select_largest({&kernels, nullptr, tensor_key(seed, k), n}, counts[k], threads,
                       [&](const uint32_t* index, const uint32_t*, int64_t count) {
                           float piece[PIECE];
                           for (int64_t first = 0; first < count; first += PIECE) {
                               const int64_t m = std::min(PIECE, count - first);
                               for (int64_t i = 0; i < m; i++) piece[i] = saturated(tensor[index[first + i]] * scale);
                               values.encode(piece, m, out);
                               out += values.bytes * m;
                           }
                       });
    }
    return out - body;
}

Verdict topk_decode(const Kernels& kernels, const uint8_t* body, int64_t bytes, const Model& model, float* out,
                    bool accumulate, float weight) {
    return decode(kernels, body, 0, bytes, model, false, 0, out, accumulate, weight, 1);
}

Verdict randk_decode(const Kernels& kernels, const uint8_t* body, int64_t bytes, const Model& model, float* out,
                     bool accumulate, float weight, int threads) {
    if (bytes < 8) return {model.tensors, FAULT_SIZE};
    uint64_t seed;
    std::memcpy(&seed, body, 8);
    return decode(kernels, body, 8, bytes, model, true, seed, out, accumulate, weight, threads);
}

}  // namespace edgegossip
