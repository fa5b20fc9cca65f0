// Walks over the codes of a row of symbols that are not zero, a word of 64 bits at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "codec/codes.hpp"

namespace edgegossip::coding {

// Calls visit(index, code) for every nonzero code in order; stops and returns false when it returns false.
template <int WIDTH, class Visit>
bool each_nonzero_of(const uint8_t* symbols, int64_t n, const Visit& visit) {
    constexpr int PER_WORD = 64 / WIDTH;
    constexpr uint64_t MASK = (uint64_t(1) << WIDTH) - 1;
    const int64_t bytes = (n * WIDTH + 7) / 8;
    for (int64_t byte = 0; byte < bytes; byte += 8) {
        uint64_t word = 0;
        if (byte + 8 <= bytes)
            std::memcpy(&word, symbols + byte, 8);
        else
            std::memcpy(&word, symbols + byte, size_t(bytes - byte));
        const int64_t first = byte / 8 * PER_WORD;
        while (word != 0) {
            const int at = __builtin_ctzll(word) / WIDTH;
            if (!visit(first + at, uint32_t(word >> (at * WIDTH) & MASK))) return false;
            word &= ~(MASK << (at * WIDTH));
        }
    }
    return true;
}

template <class Visit>
bool each_nonzero(const uint8_t* symbols, int64_t n, int bits, const Visit& visit) {
    switch (symbol_width(bits)) {
        case 1: return each_nonzero_of<1>(symbols, n, visit);
        case 2: return each_nonzero_of<2>(symbols, n, visit);
        case 4: return each_nonzero_of<4>(symbols, n, visit);
        case 8: return each_nonzero_of<8>(symbols, n, visit);
        default: return each_nonzero_of<16>(symbols, n, visit);
    }
}

// Writes a code into a row of symbols that was all zero there; code 0 changes nothing.
template <int WIDTH>
void set_code(uint8_t* symbols, int64_t at, uint32_t code) {
    if (WIDTH == 16) {
        symbols[2 * at] |= uint8_t(code);
        symbols[2 * at + 1] |= uint8_t(code >> 8);
    } else {
        symbols[at * WIDTH / 8] |= uint8_t(code << (at * WIDTH % 8));
    }
}

inline void set_code(uint8_t* symbols, int64_t at, uint32_t code, int width) {
    switch (width) {
        case 1: return set_code<1>(symbols, at, code);
        case 2: return set_code<2>(symbols, at, code);
        case 4: return set_code<4>(symbols, at, code);
        case 8: return set_code<8>(symbols, at, code);
        default: return set_code<16>(symbols, at, code);
    }
}

}  // namespace edgegossip::coding
