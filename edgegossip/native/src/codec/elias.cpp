#include "codec/elias.hpp"

#include <array>

#include "codec/codes.hpp"
#include "codec/nonzeros.hpp"

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

// The Elias coder's decoder. Words are short where there are many: a table says what the next 12 bits hold, up to two whole
// nonzeros, so that the chain of lookups, each of which waits for the one before, is half as long as the words.
namespace {

constexpr int WINDOW = 12;
constexpr uint64_t WINDOWS = uint64_t(1) << WINDOW;

// What a window holds: how far the place moves and what is put there, then the same again; 0: the first word is longer.
// Bits 0 .. 3 length, 4 .. 5 how many levels, 6 whether a gap comes last (a level is expected next), 7 .. 12 first gap,
// 13 .. 17 first level, 18 its sign, 19 .. 22 second gap, 23 .. 26 second level, 27 its sign.
using Entry = uint32_t;

constexpr int MOST_BITS = 12, MOST_GAP = 63 + 15;  // of one window

struct Word {
    uint32_t value, bits;  // 0 bits: none ends in the window
};

Word word_in(uint64_t bits, int room) {
    BitReader in{reinterpret_cast<const uint8_t*>(&bits), sizeof bits};
    const uint64_t value = read_omega(&in);
    return value != 0 && in.used <= room ? Word{uint32_t(value), uint32_t(in.used)} : Word{0, 0};
}

struct Item {
    uint32_t gap, level, sign, bits;
};

// A gap (unless it was read), a sign and a level; 0 bits where they do not end in the window.
Item item_in(uint64_t bits, int room, bool has_gap) {
    const Word gap = has_gap ? Word{0, 0} : word_in(bits, room);
    if (!has_gap && gap.bits == 0) return {};
    const int left = room - int(gap.bits) - 1;
    const Word level = left > 0 ? word_in(bits >> (gap.bits + 1), left) : Word{0, 0};
    if (level.bits == 0) return {};
    return {gap.value, level.value, uint32_t(bits >> gap.bits & 1), gap.bits + 1 + level.bits};
}

Entry entry_of(uint64_t window, bool has_gap) {
    const Item first = item_in(window, WINDOW, has_gap);
    if (first.bits == 0) {
        const Word gap = has_gap ? Word{0, 0} : word_in(window, WINDOW);
        return gap.bits == 0 ? 0 : gap.bits | 1u << 6 | gap.value << 7;
    }
    const Item second = item_in(window >> first.bits, WINDOW - int(first.bits), false);
    return (first.bits + second.bits) | (second.bits == 0 ? 1u : 2u) << 4 | first.gap << 7 | first.level << 13 | first.sign << 18 |
           second.gap << 19 | second.level << 23 | second.sign << 27;
}

// Entries where a gap comes next, then where a sign does.
struct Windows {
    std::array<Entry, 2 * WINDOWS> entries;
    Windows() : entries() {
        for (uint64_t w = 0; w < WINDOWS; w++) {
            entries[w] = entry_of(w, false);
            entries[WINDOWS + w] = entry_of(w, true);
        }
    }
};

const Entry* windows() {
    static const Windows made;
    return made.entries.data();
}

constexpr int AT_ONCE = 4;  // windows of one load
static_assert(AT_ONCE * MOST_BITS <= 57);

// Where a reader stands in a block, and what is left.
struct Place {
    int64_t at;      // the last nonzero
    uint64_t ahead;  // how far beyond it the next one is known to lie; 0: not known
    uint32_t left;
    bool good;
};

// As far as loads stay within the stream and places within the block.
template <int WIDTH, bool STORE>
Place read_windows(Place place, BitReader* in, uint8_t* symbols, int64_t n, int bits, uint32_t levels) {
    const Entry* const table = windows();
    const int64_t last_load = 8 * (in->size - 8), last_place = n - 1 - AT_ONCE * MOST_GAP;
    const uint32_t sign_at = uint32_t(bits) - 1;
    int64_t at = place.at, used = in->used, left = place.left;
    uint32_t pending = 0, bad = 0;
    uint64_t waits = 0;  // WINDOWS where a level comes next
    const auto put = [&](uint32_t level, uint32_t sign) {
        bad |= levels - level;
        if (STORE) set_code<WIDTH>(symbols, at, level | sign << sign_at);
    };
    while (used <= last_load && at <= last_place && left >= 2 * AT_ONCE) {
        uint64_t window;
        Entry e = 0;
        std::memcpy(&window, in->p + (used >> 3), sizeof window);
        window >>= used & 7;
        for (int k = 0; k < AT_ONCE; k++) {
            e = table[waits | (window & (WINDOWS - 1))];
            if (e == 0) break;
            pending = e >> 7 & 63;
            at += pending;
            put(e >> 13 & 31, e >> 18 & 1);
            at += e >> 19 & 15;
            put(e >> 23 & 15, e >> 27);
            waits = uint64_t(e & 64) << (WINDOW - 6);
            left -= e >> 4 & 3;
            used += e & 15;
            window >>= e & 15;
        }
        if (e != 0) continue;
        BitReader slow{in->p, in->size, used};
        if (waits == 0) {
            const uint64_t gap = read_omega(&slow);
            if (gap == 0 || gap > uint64_t(n - 1 - at)) break;  // for the caller, who knows of the next block
            at += int64_t(gap);
        }
        const uint32_t sign = uint32_t(slow.peek() & 1);
        slow.skip(1);
        const uint64_t level = read_omega(&slow);
        if (level == 0 || level > levels || !slow.inside()) return {at, 0, uint32_t(left), false};
        put(uint32_t(level), sign);
        used = slow.used;
        waits = 0;
        left--;
    }
    in->used = used;
    const uint64_t ahead = waits != 0 ? pending : 0;
    return {at - int64_t(ahead), ahead, uint32_t(left), bad >> 31 == 0};
}

using ReadWindows = Place (*)(Place, BitReader*, uint8_t*, int64_t, int, uint32_t);

template <bool STORE>
ReadWindows reader_of(int width) {
    switch (width) {
        case 2: return read_windows<2, STORE>;
        case 4: return read_windows<4, STORE>;
        case 8: return read_windows<8, STORE>;
        default: return read_windows<16, STORE>;
    }
}

}  // namespace

bool EliasReader::get(uint8_t* symbols, int64_t n, const Quantiser& q) {
    const int width = symbol_width(q.bits);
    const uint32_t levels = uint32_t(max_level(q));
    const ReadWindows read = symbols != nullptr ? reader_of<true>(width) : reader_of<false>(width);
    if (symbols != nullptr) std::memset(symbols, 0, size_t(symbol_bytes(n, q.bits)));
    int64_t at = -1;
    for (;;) {
        if (ahead == 0) {
            const Place place = read({at, 0, left, true}, &in, symbols, n, q.bits, levels);
            values -= place.at - at + int64_t(place.ahead);
            at = place.at;
            left = place.left;
            ahead = place.ahead;
            if (!place.good) return false;
        }
        if (ahead == 0) {
            if (left == 0) return true;
            ahead = read_omega(&in);
            if (ahead == 0 || ahead > uint64_t(values)) return false;
            values -= int64_t(ahead);
        }
        if (ahead > uint64_t(n - 1 - at)) {  // beyond this block: the rest of the gap is the next block's
            ahead -= uint64_t(n - 1 - at);
            return true;
        }
        at += int64_t(ahead);
        ahead = 0;
        left--;
        const uint32_t sign = uint32_t(in.peek() & 1);
        in.skip(1);
        const uint64_t level = read_omega(&in);
        if (level == 0 || level > levels || !in.inside()) return false;
        if (symbols != nullptr) set_code(symbols, at, sign << (q.bits - 1) | uint32_t(level), width);
    }
}

}  // namespace edgegossip::coding
