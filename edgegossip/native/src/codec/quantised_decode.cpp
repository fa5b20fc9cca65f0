// Section -> tensor. Lengths, scales and the table are checked before anything is decoded; then block by block.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/block_tasks.hpp"
#include "codec/codes.hpp"
#include "codec/elias.hpp"
#include "codec/huffman_decode.hpp"
#include "codec/runs.hpp"
#include "codec/target.hpp"

namespace edgegossip::coding {
namespace {

// Scales that stand at p: finite, not below zero, and of FP4 with a finite value of the grid's largest number, 3.
bool are_scales(const Quantiser& q, const uint8_t* p, int64_t count) {
    bool good = true;
    if (q.bucket == 0) {
        float s;
        std::memcpy(&s, p, sizeof s);
        return std::isfinite(s) && s >= 0 && (q.kind != FP4 || s == 0 || std::isfinite(3.0f / s));
    }
    for (int64_t k = 0; k < count; k++) {
        uint16_t s;
        std::memcpy(&s, p + 2 * k, sizeof s);
        good &= s < SHORT_INFINITY;
    }
    return good;
}

int64_t decode_raw(const Target& t, const uint8_t* dense, int threads) {
    const int bits = t.q.bits;
    return each_task(blocks_of(t.n), threads, t.q, t.n, [&](int64_t b, Slot* slot) {
        const int64_t first = b * BLOCK_VALUES, count = std::min(BLOCK_VALUES, t.n - first);
        const uint8_t* symbols = dense + dense_bytes(first, bits);
        if (has_padding(symbols, count, bits)) return int64_t(BAD_PADDING);
        if (!is_dense(bits)) {
            unpack_dense(symbols, count, bits, slot->symbols.data());
            symbols = slot->symbols.data();
        }
        const bool good = t.checks() ? are_codes(t.q, symbols, count) : t.write(symbols, first, count, slot->scales.data(), false);
        return good ? int64_t(0) : int64_t(BAD_CODE);
    });
}

int64_t decode_runs(const Target& t, Range r, const Body& body, LastTable* last, int threads) {
    if (r.p == r.end) return ENDS_EARLY;
    RunShape shape;
    if (!read_shape(*r.p, t.q, t.n, &shape)) return BAD_TABLE;
    CodeLengths lengths;
    const int used = read_table(r.p + 1, r.end, token_alphabet(t.q), *last, StaticTables{}, t.n, &lengths);
    if (used == 0) return BAD_TABLE;
    *last = {1, lengths};
    const TokenTable table = token_table(lengths, shape, t.n);
    std::vector<const uint8_t*> starts;
    if (const int64_t error = find_blocks({r.p + 1 + used, r.end}, t.n, run_block_size, &starts)) return error;
    return each_task(blocks_of(t.n), threads, t.q, t.n, [&](int64_t b, Slot* slot) {
        const int64_t first = b * BLOCK_VALUES, count = std::min(BLOCK_VALUES, t.n - first);
        const Values to = t.values(first, count, slot->scales.data());
        const bool good = read_run_block(t.kernels.runs, starts[size_t(b)], body.data + body.size, count, table, shape, slot->symbols.data(), to);
        return good ? int64_t(0) : int64_t(BAD_STREAM);
    });
}

int64_t decode_elias(const Target& t, Range r) {
    if (r.end - r.p < 4) return ENDS_EARLY;
    uint32_t nonzeros;
    std::memcpy(&nonzeros, r.p, 4);
    Slot& slot = slot_of_thread();
    slot.need(t.q, t.n);
    EliasReader reader{BitReader{r.p + 4, r.end - r.p - 4}, nonzeros, t.n};
    for (int64_t first = 0; first < t.n; first += BLOCK_VALUES) {
        const int64_t count = std::min(BLOCK_VALUES, t.n - first);
        if (!reader.get(t.checks() ? nullptr : slot.symbols.data(), count, t.q)) return BAD_STREAM;
        if (!t.checks() && !t.write(slot.symbols.data(), first, count, slot.scales.data(), false)) return BAD_CODE;
    }
    return reader.finished() ? 0 : int64_t(BAD_STREAM);
}

}  // namespace

int64_t find_section(const Body& body, int64_t position, const Quantiser& q, int64_t n, Section* section) {
    const int64_t scales = scale_bytes(n, q.bucket);
    if (position < 0 || position >= body.size || body.size - position - 1 < scales) return ENDS_EARLY;
    section->coder = body.data[position];
    section->scales = position + 1;
    section->payload = section->scales + scales;
    if (section->coder > CODER_ZSTD) return BAD_CODER;
    if (section->coder == CODER_HUFFMAN && q.bits > 8) return BAD_CODER;
    if ((section->coder == CODER_HUFFMAN || section->coder == CODER_RUNS || section->coder == CODER_ELIAS) && q.bits == 1) return BAD_CODER;
    uint32_t size = 0;
    int64_t bytes = dense_bytes(n, q.bits);
    if (section->coder != CODER_RAW) {
        if (body.size - section->payload < 4) return ENDS_EARLY;
        std::memcpy(&size, body.data + section->payload, 4);
        section->payload += 4;
        bytes = size;
    }
    if (body.size - section->payload < bytes) return ENDS_EARLY;
    section->end = section->payload + bytes;
    return are_scales(q, body.data + section->scales, scale_count(n, q.bucket)) ? 0 : int64_t(BAD_SCALE);
}

namespace {

// As decode_sections, of one tensor: some of its blocks may wait.
int64_t decode_now(const Kernels& kernels, const Body& body, int64_t position, const Quantiser& q, int64_t n, const StaticTables& tables,
                   TableState* state, Mode mode, float weight, float* out, int threads, int64_t index, HuffmanWork* later) {
    Section s;
    if (const int64_t error = find_section(body, position, q, n, &s)) return error;
    const Target target{kernels, q, body.data + s.scales, n, mode, weight, out};
    const Range payload{body.data + s.payload, body.data + s.end};
    int64_t error = 0;
    switch (s.coder) {
        case CODER_RAW: error = decode_raw(target, payload.p, threads); break;
        case CODER_HUFFMAN: error = later->add(target, payload, body, tables, &state->symbols, index); break;
        case CODER_RUNS: error = decode_runs(target, payload, body, &state->tokens, threads); break;
        case CODER_ELIAS: error = decode_elias(target, payload); break;
        default: error = BAD_CODER;
    }
    return error != 0 ? error : s.end;
}

}  // namespace

Reached decode_sections(const Kernels& kernels, const Body& body, Reached from, const Quantiser& q, const int64_t* offsets, int64_t tensors,
                        const StaticTables& tables, TableState* state, Mode mode, float weight, float* out, int threads) {
    HuffmanWork later(threads);
    int64_t position = from.position, tensor = from.tensor;
    for (; tensor < tensors; tensor++) {
        const int64_t start = offsets[tensor], n = offsets[tensor + 1] - start;
        if (n == 0) continue;
        if (position < body.size && body.data[position] == CODER_ZSTD) break;
        position = decode_now(kernels, body, position, q, n, tables, state, mode, weight, out == nullptr ? nullptr : out + start, threads, tensor, &later);
        if (position < 0) break;
    }
    const Reached failed = later.run();  // of tensors before this one
    return failed.position != 0 ? failed : Reached{tensor, position};
}

int64_t decode_section(const Kernels& kernels, const Body& body, int64_t position, const Quantiser& q, int64_t n,
                       const StaticTables& tables, TableState* state, Mode mode, float weight, float* out, int threads) {
    HuffmanWork later(threads);
    const int64_t end = decode_now(kernels, body, position, q, n, tables, state, mode, weight, out, threads, 0, &later);
    const Reached failed = later.run();
    return failed.position != 0 ? failed.position : end;
}

}  // namespace edgegossip::coding
