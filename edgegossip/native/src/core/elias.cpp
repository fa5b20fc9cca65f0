#include "elias.hpp"

#include <array>

#include "codes.hpp"
#include "nonzeros.hpp"

namespace edgegossip::coding {
namespace {

constexpr uint32_t MAX_WORD = 56;
constexpr int TABLE_BITS = 12;

OmegaWord make_omega(uint64_t k) {
    uint64_t text = 0;  // the word with its last bit lowest
    uint32_t count = 1;
    while (k > 1) {
        const uint32_t width = uint32_t(bit_width(k));
        text |= k << count;
        count += width;
        k = width - 1;
    }
    OmegaWord w{0, count};
    for (uint32_t i = 0; i < count; i++) w.bits |= (text >> i & 1) << (count - 1 - i);
    return w;
}

// The first bit highest instead of lowest.
uint64_t reversed(uint64_t v) {
    v = (v >> 1 & 0x5555555555555555) | (v & 0x5555555555555555) << 1;
    v = (v >> 2 & 0x3333333333333333) | (v & 0x3333333333333333) << 2;
    v = (v >> 4 & 0x0F0F0F0F0F0F0F0F) | (v & 0x0F0F0F0F0F0F0F0F) << 4;
    return __builtin_bswap64(v);
}

uint64_t read_slowly(BitReader* in) {
    uint64_t k = 1, bits = reversed(in->peek());
    uint32_t used = 0;
    while (bits >> 63) {
        const uint32_t group = uint32_t(k) + 1;
        if (k >= MAX_WORD || used + group + 1 > MAX_WORD) return 0;
        k = bits >> (64 - group);
        bits <<= group;
        used += group;
    }
    in->skip(used + 1);
    return k;
}

struct Tables {
    std::array<OmegaWord, 1 << TABLE_BITS> words;
    struct Decoded {
        uint16_t value, bits;  // 0 bits: longer than the window
    };
    std::array<Decoded, 1 << TABLE_BITS> values;

    Tables() : words(), values() {
        for (uint64_t k = 1; k < words.size(); k++) {
            words[k] = make_omega(k);
            if (words[k].count > TABLE_BITS) continue;
            for (uint64_t w = words[k].bits; w < values.size(); w += uint64_t(1) << words[k].count)
                values[w] = {uint16_t(k), uint16_t(words[k].count)};
        }
    }
};

const Tables& tables() {
    static const Tables made;
    return made;
}

inline OmegaWord word_of(uint64_t k, const Tables& t) { return k < t.words.size() ? t.words[k] : make_omega(k); }

inline uint64_t read_word(BitReader* in, const Tables& t) {
    const Tables::Decoded d = t.values[in->peek() & ((1 << TABLE_BITS) - 1)];
    if (d.bits == 0) return read_slowly(in);
    in->skip(d.bits);
    return d.value;
}

}  // namespace

OmegaWord omega(uint64_t k) { return word_of(k, tables()); }

uint64_t read_omega(BitReader* in) { return read_word(in, tables()); }

bool EliasWriter::put(const uint8_t* symbols, int64_t n, int bits, const uint8_t* limit) {
    const Tables& t = tables();
    const uint32_t sign_at = uint32_t(bits) - 1, level_mask = (1u << sign_at) - 1;
    int64_t next = -int64_t(gap);  // the first index that the next gap counts
    BitWriter w = out;
    const bool fits = each_nonzero(symbols, n, bits, [&](int64_t i, uint32_t code) {
        const OmegaWord gap_word = word_of(uint64_t(i - next + 1), t), level = word_of(code & level_mask, t);
        if (w.p >= limit) return false;
        const uint64_t signed_level = (code >> sign_at) | level.bits << 1;
        const uint32_t both = gap_word.count + level.count + 1;
        if (__builtin_expect(both <= MAX_WORD, 1)) {
            w.put(gap_word.bits | signed_level << gap_word.count, both);
        } else {
            w.put(gap_word.bits, gap_word.count);
            w.put(signed_level, level.count + 1);
        }
        next = i + 1;
        nonzeros++;
        return true;
    });
    out = w;
    gap = uint64_t(n - next);
    return fits;
}

int64_t elias_bits(const uint8_t* symbols, int64_t n, int bits, int64_t* nonzeros) {
    const Tables& t = tables();
    const uint32_t level_mask = (1u << (bits - 1)) - 1;
    int64_t next = 0, total = 0;
    each_nonzero(symbols, n, bits, [&](int64_t i, uint32_t code) {
        total += word_of(uint64_t(i - next + 1), t).count + word_of(code & level_mask, t).count + 1;
        next = i + 1;
        ++*nonzeros;
        return true;
    });
    return total;
}

}  // namespace edgegossip::coding
