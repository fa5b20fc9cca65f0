// Strings of bits, LSB first.
#pragma once

#include <cstdint>
#include <cstring>

namespace edgegossip::coding {

inline int bit_width(uint64_t v) { return v == 0 ? 0 : 64 - __builtin_clzll(v); }

// 16 bits, the lower byte first.
inline uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// Where bits are written. Up to 8 bytes beyond the last bit are touched.
struct BitWriter {
    uint8_t* p;
    uint64_t acc = 0;
    uint32_t held = 0;  // bits in acc, below 8 between calls

    void put(uint64_t bits, uint32_t count) {  // count <= 56, no bits above it
        acc |= bits << held;
        held += count;
        std::memcpy(p, &acc, sizeof acc);
        p += held >> 3;
        acc >>= held & 56;
        held &= 7;
    }

    // Pads with zeros to a byte; the end of what was written.
    uint8_t* finish() {
        p += held > 0;
        acc = held = 0;
        return p;
    }
};

// Where bits are read; zeros beyond the end, which `inside` tells of.
struct BitReader {
    const uint8_t* p;
    int64_t size;  // bytes
    int64_t used = 0;

    // At least the next 57 bits.
    uint64_t peek() const {
        const int64_t byte = used >> 3;
        uint64_t v = 0;
        if (byte + 8 <= size)
            std::memcpy(&v, p + byte, sizeof v);
        else
            for (int64_t k = byte; k < size; k++) v |= uint64_t(p[k]) << (8 * (k - byte));
        return v >> (used & 7);
    }
    void skip(int64_t bits) { used += bits; }
    bool inside() const { return used <= 8 * size; }

    // Everything was used, but for less than a byte of zeros.
    bool at_end() const {
        if (!inside() || used <= 8 * (size - 1)) return false;
        return used == 8 * size || p[size - 1] >> (used & 7) == 0;
    }
};

}  // namespace edgegossip::coding
