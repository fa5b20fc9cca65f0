#include "codec/runs.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "codec/bits.hpp"
#include "codec/codes.hpp"

namespace edgegossip::coding {

RunShape run_shape(const Quantiser& q, int run_bits, RunSigns signs) { return {q.bits, max_level(q), run_bits, signs}; }

bool read_shape(uint8_t byte, const Quantiser& q, int64_t n, RunShape* shape) {
    const int run_bits = byte & 15, signs = byte >> 4;
    *shape = run_shape(q, run_bits, RunSigns(signs));
    return run_bits <= MAX_RUN_BITS && signs <= (n < ONE_SIGN_FROM ? SIGNS_BESIDE : ALL_MINUS);
}

// The mean run is about 1 / density. With 2^k from a quarter to half of it, 16 steps of 2^k reach 4 means or more, and taking the runs
// of a step for equally likely costs under .02 bit.
int run_bits_for(int64_t nonzeros, int64_t values) {
    const int64_t mean = values / std::max<int64_t>(nonzeros, 1);
    return std::min(bit_width(uint64_t(mean / 4)), MAX_RUN_BITS);
}

RunItems find_items(const Runs& kernels, const uint8_t* symbols, int64_t n, const RunShape& shape, uint32_t* items, uint32_t* hist) {
    RunItems found{};
    const int streams = run_streams_of(n);
    int64_t at = 0;
    for (int i = 0; i < streams; i++) {
        const int64_t values = i + 1 < streams ? run_quarter(n) : n - at;
        found.counts[i] = kernels.items(symbols + symbol_bytes(at, shape.bits), values, &shape, items, hist);
        items += found.counts[i];
        at += values;
    }
    return found;
}

namespace {

bool has_sign(uint32_t item) { return (item & RUN_LOW_BITS) == 0 && (item & 0xff) != RUN_SKIP; }

// Of an item with this token.
int sign_bits(int token, const RunShape& shape) { return shape.signs == SIGNS_BESIDE && token != RUN_SKIP; }

}  // namespace

void SignsFound::look_at(const uint32_t* items, int64_t count) {
    for (int64_t i = 0; i < count && !(plus && minus); i++)
        if (has_sign(items[i])) (items[i] >> 8 & 1 ? minus : plus) = true;
}

bool take_signs(uint32_t* items, int64_t count, RunSigns all) {
    const uint32_t sign = all == ALL_MINUS;
    bool good = true;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t item = items[i];
        if (!has_sign(item)) continue;
        good &= (item >> 8 & 1) == sign;
        items[i] = (item >> 9) << 8 | (item & 0xff);
    }
    return good;
}

int64_t bits_beside(const uint32_t* hist, const RunShape& shape) {
    const LevelClasses classes(shape.max_level);
    int64_t bits = 0;
    for (int s = 0; s < 256; s++) bits += int64_t(hist[s]) * (shape.run_bits + sign_bits(s, shape) + int(classes.low_bits(uint32_t(s & 15))));
    return bits;
}

void make_run_table(const CodeLengths& lengths, const RunShape& shape, RunEntry* table) {
    std::memset(table, 0, 256 * sizeof *table);
    each_code(lengths, [&](int token, int bits, uint32_t code) {
        const int all = bits + shape.run_bits + sign_bits(token, shape);
        table[token] = code << 16 | uint32_t(all) << 8 | uint32_t(bits);
    });
}

int64_t write_run_block(const Runs& kernels, const uint32_t* items, const RunItems& found, int64_t n, const RunEntry* table, uint8_t* out) {
    const int streams = run_streams_of(n);
    uint8_t* to = out + 2 * streams;
    for (int i = 0; i < streams; i++) {
        const int64_t bytes = kernels.write(items, found.counts[i], table, to);
        if (bytes > UINT16_MAX) return 0;
        out[2 * i] = uint8_t(bytes);
        out[2 * i + 1] = uint8_t(bytes >> 8);
        items += found.counts[i];
        to += bytes;
    }
    return to - out;
}

int64_t run_block_size(const uint8_t* p, const uint8_t* end, int64_t n) {
    const int streams = run_streams_of(n);
    int64_t size = 2 * streams;
    if (end - p < size) return 0;
    for (int i = 0; i < streams; i++) size += p[2 * i] | p[2 * i + 1] << 8;
    return size <= end - p ? size : 0;
}

bool read_run_block(const Runs& kernels, const uint8_t* p, const uint8_t* end, int64_t n, const TokenTable& table, const RunShape& shape,
                    uint8_t* room, const Values& to) {
    const int streams = run_streams_of(n);
    int64_t sizes[4] = {};
    for (int i = 0; i < streams; i++) sizes[i] = p[2 * i] | p[2 * i + 1] << 8;
    return kernels.read(p + 2 * streams, sizes, streams, end, table, &shape, room, n, to);
}

namespace {

// A token's code word and the sign after it are looked up as one word, so there are two words for a token that has one.
template <class Visit>
void each_word(const CodeLengths& lengths, const RunShape& shape, const Visit& visit) {
    const LevelClasses classes(shape.max_level);
    each_code(lengths, [&](int token, int bits, uint32_t code) {
        const uint32_t high = uint32_t(token >> 4) << 24, of = uint32_t(token & 15), low_bits = classes.low_bits(of);
        if (of == 0) return visit(bits, code, high | uint32_t(bits));
        const uint32_t entry = high | classes.base(of) << 8 | low_bits << 4 | (low_bits > 0 ? 1u << 31 : 0), minus = 1u << (8 + shape.bits - 1);
        if (shape.signs != SIGNS_BESIDE) return visit(bits, code, entry | uint32_t(bits) | (shape.signs == ALL_MINUS ? minus : 0));
        visit(bits + 1, code, entry | uint32_t(bits + 1));
        visit(bits + 1, code | 1u << bits, entry | uint32_t(bits + 1) | minus);
    });
}

// As the tables of huffman.cpp, but words do not come in the order of their lengths, so each is put to all its windows.
void make_token_table(const CodeLengths& lengths, const RunShape& shape, TokenEntry* table) {
    uint32_t next_place = uint32_t(RUN_WINDOWS);
    int64_t filled = 0;
    std::memset(table, 0, RUN_WINDOWS * sizeof *table);
    each_word(lengths, shape, [&](int bits, uint32_t code, TokenEntry entry) {
        if (bits <= RUN_WINDOW_BITS) {
            filled += int64_t(1) << (RUN_WINDOW_BITS - bits);
            for (uint32_t at = code; at < RUN_WINDOWS; at += 1u << bits) table[at] = entry;
            return;
        }
        TokenEntry& start = table[code & uint32_t(RUN_WINDOWS - 1)];
        if (start == 0) {
            start = 3u << 30 | next_place;
            next_place += uint32_t(RUN_AFTER);
        }
        TokenEntry* const after = table + (start & 0xffff);
        for (uint32_t at = code >> RUN_WINDOW_BITS; at < RUN_AFTER; at += 1u << (bits - RUN_WINDOW_BITS)) after[at] = entry;
    });
    table_work() += filled + next_place;
}

// Whether lookups of several items would mostly meet one that has low bits of a level, which those leave to others.
bool mostly_wide(const CodeLengths& lengths, const RunShape& shape) {
    const LevelClasses classes(shape.max_level);
    constexpr int ONE = 1 << HUFFMAN_MAX_BITS;
    int wide = 0;
    for (uint32_t s = 0; s < 256; s++)
        if (lengths.bits[s] > 0 && classes.low_bits(s & 15) > 0) wide += ONE >> lengths.bits[s];
    return wide > ONE / 16;
}

// With fewer values a table of several items does not pay.
constexpr int64_t SEVERAL_ITEMS_FROM = 32768;

// An item that ends within a window, of which no low bits of the level follow.
struct Item {
    uint16_t word;
    uint8_t values, code;  // as an entry has it
};

// Items in the order of their bits.
struct Items {
    Item items[ITEMS_WINDOWS];  // no two begin alike
    int first[ITEMS_WINDOW_BITS + 2] = {};

    Items(const CodeLengths& lengths, const RunShape& shape) {
        const int k = shape.run_bits;
        int count[ITEMS_WINDOW_BITS + 1] = {};
        const auto each = [&](const auto& visit) {
            each_word(lengths, shape, [&](int bits, uint32_t code, TokenEntry entry) {
                if (entry >> 31 == 0 && bits + k <= ITEMS_WINDOW_BITS) visit(bits, code, entry);
            });
        };
        each([&](int bits, uint32_t, TokenEntry) { count[bits + k] += 1 << k; });
        for (int bits = 0; bits <= ITEMS_WINDOW_BITS; bits++) first[bits + 1] = first[bits] + count[bits];
        int next[ITEMS_WINDOW_BITS + 1];
        std::copy_n(first, ITEMS_WINDOW_BITS + 1, next);
        each([&](int bits, uint32_t word, TokenEntry entry) {
            const uint32_t code = entry >> 8 & 0xff, sign = shape.bits > 4 ? code >> (shape.bits - 1) << 3 : 0;
            for (uint32_t low = 0; low < 1u << k; low++)
                items[next[bits + k]++] = {uint16_t(word | low << bits), uint8_t((entry >> 24 << k | low) + 1),
                                           uint8_t(shape.bits > 4 ? (code & 7) | sign : code)};
        });
    }
};

// Windows that items fill to the last bit, and their entries.
struct FilledWindows {
    uint16_t window[ITEMS_WINDOWS];
    ItemsEntry entry[ITEMS_WINDOWS];
};

// The entry of some items and then another, of so many bits; ITEMS_LONG where it has no room for them all.
inline ItemsEntry with_item(ItemsEntry before, int bits, const Item& item) {
    const uint32_t codes = uint32_t(before >> ITEMS_CODES_AT), values = before >> 8 & 0xff, lead = before >> 16 & 0xff;
    if (values + item.values > uint32_t(MOST_ITEMS_VALUES)) return ITEMS_LONG;
    const ItemsEntry after = before + uint64_t(bits) + (uint64_t(item.values) << 8);
    if (item.code == 0) return after;
    const uint32_t at = values + item.values - 1;  // of its code
    if (codes == 0) return after | uint64_t(at) << 16 | uint64_t(item.code) << ITEMS_CODES_AT;
    if (at - lead >= uint32_t(ITEMS_CODES)) return ITEMS_LONG;
    return after | uint64_t(item.code) << (ITEMS_CODES_AT + 4 * (at - lead));
}

// As fill_windows of huffman.cpp: entries of windows of so many bits are those of one bit less, twice, but where an item ends with the new bit.
void make_items_table(const CodeLengths& lengths, const RunShape& shape, ItemsEntry* table) {
    const Items all(lengths, shape);
    FilledWindows filled;
    int first[ITEMS_WINDOW_BITS + 2] = {0, 1}, count = 1;
    filled.window[0] = 0;
    filled.entry[0] = 0;
    table[0] = ITEMS_LONG;
    for (int bits = 1; bits <= ITEMS_WINDOW_BITS; bits++) {
        std::memcpy(table + (1 << (bits - 1)), table, sizeof *table << (bits - 1));
        for (int last = 1; last <= bits; last++) {
            if (all.first[last] == all.first[last + 1]) continue;
            for (int f = first[bits - last]; f < first[bits - last + 1]; f++)
                for (int i = all.first[last]; i < all.first[last + 1]; i++) {
                    const ItemsEntry entry = with_item(filled.entry[f], last, all.items[i]);
                    if (entry == ITEMS_LONG) continue;
                    const uint32_t window = filled.window[f] | uint32_t(all.items[i].word) << (bits - last);
                    table[window] = entry;
                    if (bits == ITEMS_WINDOW_BITS) continue;
                    filled.window[count] = uint16_t(window);
                    filled.entry[count++] = entry;
                }
        }
        first[bits + 1] = count;
    }
    table_work() += 4 * ITEMS_WINDOWS;
}

}  // namespace

TokenTable token_table(const CodeLengths& lengths, const RunShape& shape, int64_t n) {
    struct Several {  // of a number of run bits, which changes from tensor to tensor while the code stays
        bool made;
        int64_t values;  // since the code came
        ItemsEntry entries[ITEMS_WINDOWS];
    };
    struct Made {
        CodeLengths lengths;
        int32_t bits, max_level;
        RunSigns signs;
        bool wide;
        TokenEntry entries[RUN_ENTRIES];
        Several several[MOST_ITEMS_RUN_BITS + 1];
    };
    thread_local std::unique_ptr<Made> last;
    const bool known = last != nullptr && last->bits == shape.bits && last->max_level == shape.max_level && last->signs == shape.signs &&
                       std::memcmp(last->lengths.bits, lengths.bits, sizeof lengths.bits) == 0;
    if (!known) {
        if (last == nullptr) last.reset(new Made);
        make_token_table(lengths, shape, last->entries);
        last->lengths = lengths;
        last->bits = shape.bits;
        last->max_level = shape.max_level;
        last->signs = shape.signs;
        last->wide = mostly_wide(lengths, shape);
        for (Several& one : last->several) {
            one.made = false;
            one.values = 0;
        }
    }
    if (shape.run_bits > MOST_ITEMS_RUN_BITS || shape.bits > 8 || last->wide) return {last->entries, nullptr};
    Several& several = last->several[shape.run_bits];
    several.values += n;
    if (!several.made && several.values >= SEVERAL_ITEMS_FROM) {
        make_items_table(lengths, shape, several.entries);
        several.made = true;
    }
    return {last->entries, several.made ? several.entries : nullptr};
}

}  // namespace edgegossip::coding
