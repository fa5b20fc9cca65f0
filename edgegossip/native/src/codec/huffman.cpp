#include "codec/huffman.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "codec/bits.hpp"

namespace edgegossip::coding {
namespace {

constexpr int WEIGHT_BITS = 9;  // of a weight that count

// Leaves in order of weight, then symbol.
struct Leaves {
    int n = 0;
    uint8_t symbol[256];
    uint64_t weight[257];  // one more, heavier than all
};

// A weight's place in the order of weights with WEIGHT_BITS significant bits; below 2^14.
inline uint32_t rank_of(uint64_t weight) {
    const int shift = std::max(0, bit_width(weight) - WEIGHT_BITS);
    return uint32_t(shift << (WEIGHT_BITS - 1)) + uint32_t(weight >> shift);
}

Leaves sorted_leaves(const uint64_t* weights) {
    Leaves leaves;
    uint8_t from[2][256];
    uint16_t rank[256];
    int start[2][129] = {};
    for (int s = 0; s < 256; s++) {
        if (weights[s] == 0) continue;
        rank[s] = uint16_t(rank_of(weights[s]));
        from[0][leaves.n++] = uint8_t(s);
        start[0][1 + (rank[s] & 127)]++;
        start[1][1 + (rank[s] >> 7)]++;
    }
    for (int d = 0; d < 128; d++) {
        start[0][d + 1] += start[0][d];
        start[1][d + 1] += start[1][d];
    }
    for (int i = 0; i < leaves.n; i++) from[1][start[0][rank[from[0][i]] & 127]++] = from[0][i];  // a radix sort, which keeps the order of equals
    for (int i = 0; i < leaves.n; i++) leaves.symbol[start[1][rank[from[1][i]] >> 7]++] = from[1][i];
    for (int i = 0; i < leaves.n; i++) {
        const uint64_t weight = weights[leaves.symbol[i]];
        const int cut = std::max(0, bit_width(weight) - WEIGHT_BITS);
        leaves.weight[i] = weight >> cut << cut;
    }
    leaves.weight[leaves.n] = UINT64_MAX;
    return leaves;
}

// How many codes have which length in Huffman's code, made by two queues (van Leeuwen 1976), leaves first among equals; what
// exceeds the limit counts for it.
void count_lengths(const Leaves& leaves, int* counts) {
    const int n = leaves.n;
    if (n < 2) return;
    uint64_t pair[256];  // in the order of their making, which is that of their weights
    uint8_t parent[256] = {}, leaf_parent[256] = {}, depth[256];
    std::fill_n(pair, 256, UINT64_MAX - 1);
    int leaf = 0, oldest = 0;
    for (int made = 0; made < n - 1; made++) {
        uint64_t sum = 0;
        for (int half = 0; half < 2; half++) {
            const bool take_leaf = leaves.weight[leaf] <= pair[oldest];
            sum += take_leaf ? leaves.weight[leaf] : pair[oldest];
            (take_leaf ? leaf_parent[leaf] : parent[oldest]) = uint8_t(made);
            leaf += take_leaf;
            oldest += !take_leaf;
        }
        pair[made] = sum;
    }
    depth[n - 2] = 0;
    for (int k = n - 3; k >= 0; k--) depth[k] = uint8_t(std::min(depth[parent[k]] + 1, HUFFMAN_MAX_BITS - 1));
    int apart[4][HUFFMAN_MAX_BITS + 1] = {};  // equal neighbours would wait for each other
    for (int i = 0; i < n; i++) apart[i & 3][depth[leaf_parent[i]] + 1]++;
    for (int bits = 0; bits <= HUFFMAN_MAX_BITS; bits++) counts[bits] += apart[0][bits] + apart[1][bits] + apart[2][bits] + apart[3][bits];
}

// Makes the code complete again: one code of the limit's length after the other goes to the longest shorter code, which splits.
void make_room(int* counts) {
    int64_t kraft = 0;
    for (int bits = 1; bits <= HUFFMAN_MAX_BITS; bits++) kraft += int64_t(counts[bits]) << (HUFFMAN_MAX_BITS - bits);
    for (; kraft > int64_t(1) << HUFFMAN_MAX_BITS; kraft--) {
        int bits = HUFFMAN_MAX_BITS - 1;
        while (counts[bits] == 0) bits--;
        counts[HUFFMAN_MAX_BITS]--;
        counts[bits]--;
        counts[bits + 1] += 2;
    }
}

}  // namespace

void code_lengths(const uint64_t* weights, CodeLengths* lengths) {
    const Leaves leaves = sorted_leaves(weights);
    std::memset(lengths->bits, 0, sizeof lengths->bits);
    int counts[HUFFMAN_MAX_BITS + 1] = {};
    count_lengths(leaves, counts);
    make_room(counts);
    int i = 0;  // the lightest first
    for (int bits = HUFFMAN_MAX_BITS; bits > 0; bits--)
        for (const int end = i + counts[bits]; i < end; i++) lengths->bits[leaves.symbol[i]] = uint8_t(bits);
}

namespace {

bool found_complete(const CodeLengths& lengths, const uint8_t* valid) {
    int32_t kraft = 0;
    uint32_t bad = 0;
    for (int s = 0; s < 256; s++) {
        const uint32_t bits = lengths.bits[s], has_code = bits != 0;
        bad |= (bits > HUFFMAN_MAX_BITS) | (has_code & (valid[s] == 0));
        kraft += int32_t((has_code << HUFFMAN_MAX_BITS) >> (bits & 31));
    }
    return bad == 0 && kraft == int32_t(1) << HUFFMAN_MAX_BITS;
}

}  // namespace

bool is_complete(const CodeLengths& lengths, const uint8_t* valid) {
    struct Known {
        bool some;
        CodeLengths lengths;
        uint8_t valid[256];
    };
    thread_local Known last{};  // a body's sections mostly share one
    const bool known = last.some && std::memcmp(last.lengths.bits, lengths.bits, sizeof lengths.bits) == 0 &&
                       std::memcmp(last.valid, valid, sizeof last.valid) == 0;
    if (known) return true;
    if (!found_complete(lengths, valid)) return false;
    last.some = true;
    last.lengths = lengths;
    std::memcpy(last.valid, valid, sizeof last.valid);
    return true;
}

void make_encode_table(const CodeLengths& lengths, EncodeEntry* table) {
    std::memset(table, 0, 256 * sizeof *table);
    each_code(lengths, [&](int symbol, int bits, uint32_t code) { table[symbol] = code << 8 | uint32_t(bits); });
}

int64_t& table_work() {
    thread_local int64_t work = 0;
    return work;
}

namespace {

constexpr int64_t LARGE_WINDOW_FROM = 8192;  // values
constexpr int64_t SEVERAL_FROM = 2048;  // values: fewer do not pay for windows of several symbols
constexpr int SMALL_WINDOW_BITS = 10;
constexpr double SHORT_GAIN = 1.15;  // of a lookup of short entries over one of whole ones
// A longer code shares its first bits with another one at least.
constexpr int64_t entries_of(int window) { return (int64_t(1) << window) + 128 * (int64_t(1) << (HUFFMAN_MAX_BITS - window)); }
constexpr int64_t MOST_ENTRIES = std::max(entries_of(HUFFMAN_WINDOW_BITS), entries_of(SMALL_WINDOW_BITS));

struct Word {
    uint8_t symbol;
    uint16_t code;
};

// A table, and the windows among its that codes fill to the last bit.
template <class Entry>
struct Entries {
    Entry of[MOST_ENTRIES];
    uint16_t full_window[1 << HUFFMAN_WINDOW_BITS];
    Entry full[1 << HUFFMAN_WINDOW_BITS];
};

struct Made {
    CodeLengths lengths;
    int window;
    int symbols;  // of an entry at most
    bool is_short;
    Word words[256];                          // in the order of their lengths
    int first_word[HUFFMAN_MAX_BITS + 2];     // of each length
    Entries<ShortEntry> short_entries;        // one of both is made
    Entries<WholeEntry> whole_entries;
};

void list_words(Made* m) {
    int count = 0;
    std::fill_n(m->first_word, HUFFMAN_MAX_BITS + 2, 0);
    each_code(m->lengths, [&](int symbol, int bits, uint32_t code) {
        m->words[count++] = {uint8_t(symbol), uint16_t(code)};
        m->first_word[bits + 1] = count;
    });
    for (int bits = 1; bits <= HUFFMAN_MAX_BITS + 1; bits++) m->first_word[bits] = std::max(m->first_word[bits], m->first_word[bits - 1]);
}

// Entries of windows of k bits are those of k - 1 bits, twice, but where a code ends with the new bit; and such a window is a code
// after a window that other codes fill. How many of these there were.
template <class Entry>
int64_t fill_windows(const Made& m, Entries<Entry>* entries) {
    using Form = EntryForm<Entry>;
    const int most = std::min(m.symbols, Form::MOST_SYMBOLS);
    int first_full[HUFFMAN_WINDOW_BITS + 2] = {0, 1}, full = 1;
    entries->full_window[0] = 0;
    entries->full[0] = 0;
    entries->of[0] = Form::LONG;
    for (int bits = 1; bits <= m.window; bits++) {
        std::memcpy(entries->of + (1 << (bits - 1)), entries->of, sizeof(Entry) << (bits - 1));
        for (int last = 1; last <= bits; last++)
            for (int f = first_full[bits - last]; f < first_full[bits - last + 1]; f++) {
                const Entry before = entries->full[f];
                const int held = count_of(before);
                if (held == most) continue;
                for (int w = m.first_word[last]; w < m.first_word[last + 1]; w++) {
                    const uint32_t window = entries->full_window[f] | uint32_t(m.words[w].code) << (bits - last);
                    const Entry entry = before + Entry(last) + (Entry(1) << Form::COUNT_AT) + (Entry(m.words[w].symbol) << (Form::SYMBOLS_AT + 8 * held));
                    entries->of[window] = entry;
                    if (bits < m.window) {
                        entries->full_window[full] = uint16_t(window);
                        entries->full[full] = entry;
                    }
                    full++;
                }
            }
        first_full[bits + 1] = full;
    }
    return full;
}

// The codes longer than a window: the first that begins so gets a place after the windows. Where the places end.
template <class Entry>
int64_t fill_places(const Made& m, Entry* entries) {
    using Form = EntryForm<Entry>;
    const uint32_t after = 1u << (HUFFMAN_MAX_BITS - m.window);
    uint32_t next_place = 1u << m.window;
    for (int bits = m.window + 1; bits <= HUFFMAN_MAX_BITS; bits++)
        for (int w = m.first_word[bits]; w < m.first_word[bits + 1]; w++) {
            const Word word = m.words[w];
            Entry& place = entries[word.code & ((1u << m.window) - 1)];
            if (place == Form::LONG) {
                place |= Entry(next_place) << Form::SYMBOLS_AT;
                next_place += after;
            }
            const Entry entry = Entry(bits) | Entry(1) << Form::COUNT_AT | Entry(word.symbol) << Form::SYMBOLS_AT;
            for (uint32_t rest = word.code >> m.window; rest < after; rest += 1u << (bits - m.window)) entries[rest_of(place) + rest] = entry;
        }
    return next_place;
}

template <class Entry>
void fill(const Made& m, Entries<Entry>* entries) {
    table_work() += fill_windows(m, entries);
    table_work() += fill_places(m, entries->of);
}

// Bits that lookups of all windows take together, of entries of so many symbols at most.
int64_t bits_of_lookups(const Made& m, int symbols) {
    int64_t ends[HUFFMAN_WINDOW_BITS + 1] = {int64_t(1) << m.window}, taken = 0;  // windows in which as many codes as were looked at end there
    for (int held = 0; held < std::min(symbols, m.symbols); held++) {
        int64_t next[HUFFMAN_WINDOW_BITS + 1] = {};
        for (int at = 0; at < m.window; at++)
            for (int bits = 1; at + bits <= m.window; bits++) {
                const int64_t windows = (ends[at] >> bits) * (m.first_word[bits + 1] - m.first_word[bits]);
                next[at + bits] += windows;
                taken += windows * bits;
            }
        std::copy(next, next + HUFFMAN_WINDOW_BITS + 1, ends);
    }
    return taken;
}

bool pays_short(const Made& m) {
    const auto taken = [&m](int symbols) { return double(bits_of_lookups(m, symbols)); };
    return SHORT_GAIN * taken(EntryForm<ShortEntry>::MOST_SYMBOLS) >= taken(EntryForm<WholeEntry>::MOST_SYMBOLS);
}

}  // namespace

DecodeTable symbol_table(const CodeLengths& lengths, int64_t n) {
    thread_local std::unique_ptr<Made> last;
    const int window = n < LARGE_WINDOW_FROM ? SMALL_WINDOW_BITS : HUFFMAN_WINDOW_BITS;
    const int symbols = n < SEVERAL_FROM ? 1 : EntryForm<WholeEntry>::MOST_SYMBOLS;
    const bool known = last != nullptr && std::memcmp(last->lengths.bits, lengths.bits, sizeof lengths.bits) == 0;
    if (!known || last->window < window || last->symbols < symbols) {
        if (last == nullptr) last.reset(new Made);
        last->lengths = lengths;
        last->window = window;
        last->symbols = symbols;
        list_words(last.get());
        last->is_short = pays_short(*last);
        if (last->is_short)
            fill(*last, &last->short_entries);
        else
            fill(*last, &last->whole_entries);
    }
    const bool is_short = last->is_short;
    return {is_short ? last->short_entries.of : nullptr, is_short ? nullptr : last->whole_entries.of, last->lengths.bits, last->window};
}

}  // namespace edgegossip::coding
