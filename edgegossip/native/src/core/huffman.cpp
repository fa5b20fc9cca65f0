#include "huffman.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace edgegossip::coding {
namespace {

inline uint32_t reversed(uint32_t v) {
    v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
    v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
    v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(v);
}

// Canonical codes in order of (length, symbol), first bit lowest.
template <class Visit>
void each_code(const CodeLengths& lengths, const Visit& visit) {
    int start[HUFFMAN_MAX_BITS + 2] = {};
    uint8_t order[256];
    for (int s = 0; s < 256; s++) start[lengths.bits[s] + 1]++;
    const int none = start[1];
    for (int bits = 1; bits <= HUFFMAN_MAX_BITS; bits++) start[bits + 1] += start[bits];
    for (int s = 0; s < 256; s++) order[start[lengths.bits[s]]++] = uint8_t(s);
    uint32_t code = 0;  // its first bit is bit 31
    for (int i = none; i < 256; i++) {
        const int bits = lengths.bits[order[i]];
        visit(order[i], bits, reversed(code));
        code += uint32_t(1) << (32 - bits);
    }
}

// Leaves in order of weight, then symbol.
struct Leaves {
    int n = 0;
    uint8_t symbol[256];
    uint64_t weight[257];  // one more, heavier than all
};

Leaves sorted_leaves(const uint64_t* weights) {
    Leaves leaves;
    uint8_t from[256], *now = leaves.symbol, *next = from;
    uint64_t largest = 0;
    for (int s = 0; s < 256; s++) {
        if (weights[s] == 0) continue;
        now[leaves.n++] = uint8_t(s);
        largest = std::max(largest, weights[s]);
    }
    for (int shift = 0; shift < 64 && largest >> shift != 0; shift += 8) {  // a radix sort, which keeps the order of equals
        int start[257] = {};
        for (int i = 0; i < leaves.n; i++) start[1 + (weights[now[i]] >> shift & 255)]++;
        for (int d = 0; d < 256; d++) start[d + 1] += start[d];
        for (int i = 0; i < leaves.n; i++) next[start[weights[now[i]] >> shift & 255]++] = now[i];
        std::swap(now, next);
    }
    if (now != leaves.symbol) std::memcpy(leaves.symbol, now, size_t(leaves.n));
    for (int i = 0; i < leaves.n; i++) leaves.weight[i] = weights[leaves.symbol[i]];
    leaves.weight[leaves.n] = UINT64_MAX;
    return leaves;
}

// Huffman's code by two queues (van Leeuwen 1976), leaves first among equals. False when it has a code that is too long.
bool unlimited_lengths(const Leaves& leaves, CodeLengths* lengths) {
    const int n = leaves.n;
    if (n < 2) return false;
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
    for (int k = n - 3; k >= 0; k--) depth[k] = uint8_t(depth[parent[k]] + 1);
    if (depth[leaf_parent[0]] >= HUFFMAN_MAX_BITS) return false;  // the lightest leaf is deepest
    for (int i = 0; i < n; i++) lengths->bits[leaves.symbol[i]] = uint8_t(depth[leaf_parent[i]] + 1);
    return true;
}

// Level k of package-merge holds all leaves and the pairs of level k - 1, by weight (leaves first among equals). Taking
// the 2 n - 2 lightest of the last level fixes how many of every level are taken, and always the lightest leaves.
void limited_lengths(const Leaves& leaves, CodeLengths* lengths) {
    const int n = leaves.n;
    uint64_t weight[2][514];
    uint16_t leaves_before[HUFFMAN_MAX_BITS][513];  // among the first i of a level
    int size = 0;
    for (int k = 0; k < HUFFMAN_MAX_BITS; k++) {
        uint64_t* const before = weight[(k + 1) & 1];
        uint64_t* const now = weight[k & 1];
        const int pairs = size / 2;
        before[2 * pairs] = before[2 * pairs + 1] = UINT64_MAX / 4;  // heavier than all, lighter than the end of the leaves
        size = n + pairs;
        int leaf = 0;
        for (int i = 0; i < size; i++) {
            leaves_before[k][i] = uint16_t(leaf);
            const int pair = i - leaf;
            const uint64_t packed = before[2 * pair] + before[2 * pair + 1];
            const bool take_leaf = leaves.weight[leaf] <= packed;
            now[i] = take_leaf ? leaves.weight[leaf] : packed;
            leaf += take_leaf;
        }
        leaves_before[k][size] = uint16_t(leaf);
    }
    int taken = 2 * n - 2;
    for (int k = HUFFMAN_MAX_BITS - 1; k >= 0; k--) {
        const int count = leaves_before[k][taken];
        for (int i = 0; i < count; i++) lengths->bits[leaves.symbol[i]]++;
        taken = 2 * (taken - count);
    }
}

}  // namespace

// Both give the same lengths where Huffman's code is short enough.
void code_lengths(const uint64_t* weights, CodeLengths* lengths) {
    const Leaves leaves = sorted_leaves(weights);
    std::memset(lengths->bits, 0, sizeof lengths->bits);
    if (!unlimited_lengths(leaves, lengths)) limited_lengths(leaves, lengths);
}

bool is_complete(const CodeLengths& lengths, const uint8_t* valid) {
    int64_t kraft = 0;
    for (int s = 0; s < 256; s++) {
        const int bits = lengths.bits[s];
        if (bits == 0) continue;
        if (!valid[s] || bits > HUFFMAN_MAX_BITS) return false;
        kraft += int64_t(1) << (HUFFMAN_MAX_BITS - bits);
    }
    return kraft == int64_t(1) << HUFFMAN_MAX_BITS;
}

void make_encode_table(const CodeLengths& lengths, EncodeEntry* table) {
    std::memset(table, 0, 256 * sizeof *table);
    each_code(lengths, [&](int symbol, int bits, uint32_t code) { table[symbol] = code << 8 | uint32_t(bits); });
}

// Codes of up to k bits fill a table of 2^k windows; it is doubled by a copy, and the codes of k + 1 bits go where they belong.
// Windows without a code are 0 until the first longer code that begins so gets a place after the windows.
void make_decode_table(const CodeLengths& lengths, DecodeEntry* table) {
    DecodeEntry single[HUFFMAN_WINDOWS];
    uint32_t next_place = uint32_t(HUFFMAN_WINDOWS);
    int filled = 0;
    single[0] = 0;
    const auto grow = [&](int bits) {
        for (; filled < bits; filled++) std::memcpy(single + (1 << filled), single, sizeof *single << filled);
    };
    each_code(lengths, [&](int symbol, int bits, uint32_t code) {
        const DecodeEntry entry = uint32_t(symbol) | uint32_t(bits) << 16 | uint32_t(bits) << 24 | 1u << 28;
        if (bits <= HUFFMAN_WINDOW_BITS) {
            grow(bits);
            single[code] = entry;
            return;
        }
        grow(HUFFMAN_WINDOW_BITS);
        DecodeEntry& place = single[code & uint32_t(HUFFMAN_WINDOWS - 1)];
        if (place == 0) {
            place = next_place;
            next_place += HUFFMAN_AFTER;
        }
        const int step = 1 << (bits - HUFFMAN_WINDOW_BITS);
        for (int after = int(code >> HUFFMAN_WINDOW_BITS); after < HUFFMAN_AFTER; after += step) table[place + uint32_t(after)] = entry;
    });
    grow(HUFFMAN_WINDOW_BITS);
    std::memcpy(table, single, sizeof single);
    // A second symbol where its code ends within the window.
    each_code(lengths, [&](int symbol, int bits, uint32_t code) {
        if (bits > HUFFMAN_WINDOW_BITS) return;
        const uint32_t left = uint32_t(HUFFMAN_WINDOW_BITS - bits);
        const uint32_t two = uint32_t(symbol) | uint32_t(bits) << 16 | uint32_t(bits) << 24 | 2u << 28;
        for (uint32_t after = 0; after < 1u << left; after++) {
            const uint32_t next = single[after];
            const bool fits = next >> 28 != 0 && (next & 0xff0000) <= left << 16;
            if (fits) table[code + (after << bits)] = two + ((next & 0xff) << 8) + (next & 0xff0000);
        }
    });
}

const DecodeEntry* decode_table(const CodeLengths& lengths, Purpose purpose) {
    struct Made {
        CodeLengths lengths;
        DecodeEntry table[HUFFMAN_ENTRIES];
    };
    thread_local std::unique_ptr<Made> kept[2];
    std::unique_ptr<Made>& last = kept[purpose == Purpose::TOKENS];
    if (last == nullptr || std::memcmp(last->lengths.bits, lengths.bits, sizeof lengths.bits) != 0) {
        if (last == nullptr) last.reset(new Made);
        make_decode_table(lengths, last->table);
        last->lengths = lengths;
    }
    return last->table;
}

}  // namespace edgegossip::coding
