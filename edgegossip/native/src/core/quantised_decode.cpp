// Section -> tensor. Lengths, scales and the table are checked before anything is decoded; then block by block.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../parallel.hpp"
#include "block.hpp"
#include "codes.hpp"
#include "elias.hpp"
#include "runs.hpp"
#include "quantised.hpp"
#include "scales.hpp"
#include "scratch.hpp"

namespace edgegossip::coding {
namespace {

// What one thread decodes with: a block.
struct Slot {
    Scratch<float> scales;
    Scratch<uint8_t> symbols;
    Slot(const Quantiser& q, int64_t n)
        : scales(scale_count(std::min(BLOCK_VALUES, n), q.bucket)), symbols(symbol_bytes(std::min(BLOCK_VALUES, n), q.bits)) {}
};

struct Target {
    const Kernels& kernels;
    const Quantiser& q;
    const uint8_t* scales;
    int64_t n;
    Mode mode;
    float weight;
    float* out;

    bool checks() const { return mode == Mode::CHECK; }

    // Values of a block from its symbols. False when a code is none.
    bool write(const uint8_t* symbols, int64_t first, int64_t count, Slot* slot) const {
        const int64_t bucket = q.bucket;
        if (bucket == 0)
            std::memcpy(slot->scales.data(), scales, 4);
        else
            get_short(scales + 2 * (first / bucket), scale_count(count, bucket), slot->scales.data());
        return kernels.quantise.dequantise(symbols, count, &q, slot->scales.data(), out + first, mode == Mode::ADD, weight);
    }
};

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

// Calls task(t, slot) for all tasks; the error of the first in order that has one, else 0.
template <class Task>
int64_t each_task(int64_t tasks, int threads, const Quantiser& q, int64_t n, const Task& task) {
    const int64_t lanes = std::min<int64_t>(threads, tasks);
    std::vector<int64_t> errors(size_t(lanes), 0), failed(size_t(lanes), tasks);
    parallel_for(lanes, threads, [&](int64_t lane) {
        Slot slot(q, n);
        for (int64_t t = lane; t < tasks; t += lanes) {
            const int64_t error = task(t, &slot);
            if (error == 0) continue;
            errors[size_t(lane)] = error;
            failed[size_t(lane)] = t;
            return;
        }
    });
    return errors[size_t(std::min_element(failed.begin(), failed.end()) - failed.begin())];
}

int64_t blocks_of(int64_t n) { return (n + BLOCK_VALUES - 1) / BLOCK_VALUES; }

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
        const bool good = t.checks() ? are_codes(t.q, symbols, count) : t.write(symbols, first, count, slot);
        return good ? int64_t(0) : int64_t(BAD_CODE);
    });
}

struct Range {
    const uint8_t *p, *end;
};

int64_t decode_huffman(const Target& t, Range r, const Body& body, const StaticTables& tables, LastTable* last, int threads) {
    const int bits = t.q.bits;
    CodeLengths lengths;
    const int used = read_table(r.p, r.end, symbol_alphabet(t.q), *last, tables, &lengths);
    if (used == 0) return BAD_TABLE;
    *last = {1, lengths};
    const DecodeEntry* const table = decode_table(lengths, Purpose::SYMBOLS);
    const int64_t blocks = blocks_of(t.n);
    std::vector<const uint8_t*> starts;
    const uint8_t* p = r.p + used;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t size = block_size(p, r.end, std::min(BLOCK_VALUES, t.n - b * BLOCK_VALUES), bits);
        if (size == 0) return ENDS_EARLY;
        starts.push_back(p);
        p += size;
    }
    if (p != r.end) return BAD_STREAM;
    return each_task(blocks, threads, t.q, t.n, [&](int64_t b, Slot* slot) {
        const int64_t first = b * BLOCK_VALUES, count = std::min(BLOCK_VALUES, t.n - first);
        uint8_t* const symbols = slot->symbols.data();
        const int64_t error = decode_block(t.kernels.entropy, starts[size_t(b)], body.data + body.size, count, t.q, table,
                                           t.checks() ? nullptr : symbols, symbols);
        if (error != 0 || t.checks()) return error;
        return t.write(symbols, first, count, slot) ? int64_t(0) : int64_t(BAD_CODE);
    });
}

// The units' streams, in order. 0 or a SectionError.
int64_t find_units(Range r, int64_t units, int size_bytes, std::vector<Range>* found) {
    for (int64_t u = 0; u < units; u++) {
        uint32_t size = 0;
        if (r.end - r.p < size_bytes) return ENDS_EARLY;
        std::memcpy(&size, r.p, size_t(size_bytes));
        r.p += size_bytes;
        if (r.end - r.p < int64_t(size)) return ENDS_EARLY;
        found->push_back({r.p, r.p + size});
        r.p += size;
    }
    return r.p == r.end ? 0 : int64_t(BAD_STREAM);
}

int64_t decode_runs(const Target& t, Range r, LastTable* last, int threads) {
    const int bits = t.q.bits;
    if (r.p == r.end) return ENDS_EARLY;
    const int k = *r.p & 127;
    const bool is_long = *r.p >> 7 != 0;
    CodeLengths lengths;
    if (k > MAX_RUN_BITS) return BAD_TABLE;
    const int used = read_table(r.p + 1, r.end, token_alphabet(t.q), *last, StaticTables{}, &lengths);
    if (used == 0) return BAD_TABLE;
    *last = {1, lengths};
    const DecodeEntry* const table = decode_table(lengths, Purpose::TOKENS);
    const int64_t unit = int64_t(1) << (is_long ? LONG_UNIT_LOG2 : SHORT_UNIT_LOG2);
    std::vector<Range> units;
    if (const int64_t error = find_units({r.p + 1 + used, r.end}, (t.n + unit - 1) / unit, is_long ? 3 : 2, &units)) return error;
    const int64_t task_values = std::max(unit, BLOCK_VALUES);
    return each_task((t.n + task_values - 1) / task_values, threads, t.q, t.n, [&](int64_t task, Slot* slot) {
        const int64_t end = std::min(t.n, (task + 1) * task_values);
        RunsReader reader{};
        for (int64_t at = task * task_values; at < end;) {
            if (at % unit == 0) {
                const Range& own = units[size_t(at / unit)];
                reader = RunsReader{BitReader{own.p, own.end - own.p}};
            }
            const int64_t in_block = at % BLOCK_VALUES, count = std::min({unit, BLOCK_VALUES - in_block, end - at});
            uint8_t* const symbols = t.checks() ? nullptr : slot->symbols.data() + symbol_bytes(in_block, bits);
            if (!reader.get(symbols, count, t.q, k, table)) return int64_t(BAD_STREAM);
            at += count;
            if ((at % unit == 0 || at == end) && !reader.finished()) return int64_t(BAD_STREAM);
            if (t.checks() || (at % BLOCK_VALUES != 0 && at < end)) continue;
            const int64_t first = (at - 1) / BLOCK_VALUES * BLOCK_VALUES;
            if (!t.write(slot->symbols.data(), first, at - first, slot)) return int64_t(BAD_CODE);
        }
        return int64_t(0);
    });
}

int64_t decode_elias(const Target& t, Range r) {
    if (r.end - r.p < 4) return ENDS_EARLY;
    uint32_t nonzeros;
    std::memcpy(&nonzeros, r.p, 4);
    Slot slot(t.q, t.n);
    EliasReader reader{BitReader{r.p + 4, r.end - r.p - 4}, nonzeros, t.n};
    for (int64_t first = 0; first < t.n; first += BLOCK_VALUES) {
        const int64_t count = std::min(BLOCK_VALUES, t.n - first);
        if (!reader.get(t.checks() ? nullptr : slot.symbols.data(), count, t.q)) return BAD_STREAM;
        if (!t.checks() && !t.write(slot.symbols.data(), first, count, &slot)) return BAD_CODE;
    }
    return reader.finished() ? 0 : int64_t(BAD_STREAM);
}

}  // namespace

int64_t find_section(const Body& body, int64_t position, const Quantiser& q, int64_t n, Section* section) {
    const int64_t scales = scale_bytes(n, q.bucket);
    if (position < 0 || position >= body.size || body.size - position - 1 < scales) return ENDS_EARLY;
    section->stage = body.data[position];
    section->scales = position + 1;
    section->payload = section->scales + scales;
    if (section->stage > STAGE_ZSTD) return BAD_STAGE;
    if (section->stage == STAGE_HUFFMAN && q.bits > 8) return BAD_STAGE;
    if ((section->stage == STAGE_HUFFMAN || section->stage == STAGE_RUNS || section->stage == STAGE_ELIAS) && q.bits == 1) return BAD_STAGE;
    uint32_t size = 0;
    int64_t bytes = dense_bytes(n, q.bits);
    if (section->stage != STAGE_RAW) {
        if (body.size - section->payload < 4) return ENDS_EARLY;
        std::memcpy(&size, body.data + section->payload, 4);
        section->payload += 4;
        bytes = size;
    }
    if (body.size - section->payload < bytes) return ENDS_EARLY;
    section->end = section->payload + bytes;
    return are_scales(q, body.data + section->scales, scale_count(n, q.bucket)) ? 0 : int64_t(BAD_SCALE);
}

int64_t decode_section(const Kernels& kernels, const Body& body, int64_t position, const Quantiser& q, int64_t n,
                       const StaticTables& tables, TableState* state, Mode mode, float weight, float* out, int threads) {
    Section s;
    if (const int64_t error = find_section(body, position, q, n, &s)) return error;
    const Target target{kernels, q, body.data + s.scales, n, mode, weight, out};
    const Range payload{body.data + s.payload, body.data + s.end};
    int64_t error = 0;
    switch (s.stage) {
        case STAGE_RAW: error = decode_raw(target, payload.p, threads); break;
        case STAGE_HUFFMAN: error = decode_huffman(target, payload, body, tables, &state->symbols, threads); break;
        case STAGE_RUNS: error = decode_runs(target, payload, &state->tokens, threads); break;
        case STAGE_ELIAS: error = decode_elias(target, payload); break;
        default: error = BAD_STAGE;
    }
    return error != 0 ? error : s.end;
}

}  // namespace edgegossip::coding
