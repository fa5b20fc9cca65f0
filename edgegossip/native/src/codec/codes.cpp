#include "codec/codes.hpp"

#include <cstring>

#include "codec/bits.hpp"

namespace edgegossip::coding {

int symbol_width(int bits) { return bits <= 2 ? bits : bits <= 4 ? 4 : bits <= 8 ? 8 : 16; }

int32_t max_level(const Quantiser& q) {
    switch (q.kind) {
        case UNIFORM: return q.levels;
        case LOG2: return q.levels + 1;
        case LEVELS: return q.list_count - 1;
        case FP4: return 5;
        default: return 0;
    }
}

void mark_symbols(const Quantiser& q, uint8_t* valid) {
    const int width = symbol_width(q.bits);
    const uint32_t mask = (1u << width) - 1;
    for (uint32_t symbol = 0; symbol < 256; symbol++) {
        valid[symbol] = 1;
        for (int at = 0; at < 8; at += width) valid[symbol] &= uint8_t(is_code(q, symbol >> at & mask));
    }
}

bool are_codes(const Quantiser& q, const uint8_t* symbols, int64_t n) {
    uint32_t bad = 0;
    if (q.bits > 8) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t code;
            std::memcpy(&code, symbols + 2 * i, sizeof code);
            bad |= uint32_t(!is_code(q, code));
        }
        return bad == 0;
    }
    uint8_t valid[256];
    mark_symbols(q, valid);
    const int64_t bytes = symbol_bytes(n, q.bits);
    for (int64_t i = 0; i < bytes; i++) bad |= uint32_t(1 ^ valid[symbols[i]]);
    return bad == 0 && !has_padding(symbols, n, symbol_width(q.bits));
}

void pack_dense(const uint8_t* symbols, int64_t n, int bits, uint8_t* dense) {
    const int width = symbol_width(bits);
    uint64_t acc = 0;
    int held = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = symbols[i * width / 8];
        if (width == 4) code = code >> (4 * (i & 1)) & 15;
        if (width == 16) code |= uint32_t(symbols[2 * i + 1]) << 8;
        acc |= uint64_t(code) << held;
        for (held += bits; held >= 8; held -= 8, acc >>= 8) *dense++ = uint8_t(acc);
    }
    if (held > 0) *dense = uint8_t(acc);
}

void unpack_dense(const uint8_t* dense, int64_t n, int bits, uint8_t* symbols) {
    const int width = symbol_width(bits);
    const uint32_t mask = (1u << bits) - 1;
    uint64_t acc = 0;
    int held = 0;
    for (int64_t i = 0; i < n; i++) {
        for (; held < bits; held += 8) acc |= uint64_t(*dense++) << held;
        const uint32_t code = uint32_t(acc) & mask;
        acc >>= bits;
        held -= bits;
        uint8_t* const at = symbols + i * width / 8;
        if (width == 4)
            *at = uint8_t(i & 1 ? *at | code << 4 : code);
        else
            *at = uint8_t(code);
        if (width == 16) at[1] = uint8_t(code >> 8);
    }
}

bool has_padding(const uint8_t* dense, int64_t n, int bits) {
    const int used = int(n * bits & 7);
    return used > 0 && dense[n * bits >> 3] >> used != 0;
}

}  // namespace edgegossip::coding
