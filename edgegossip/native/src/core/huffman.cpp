#include "huffman.hpp"

#include <algorithm>
#include <cstring>

namespace edgegossip::coding {
namespace {

struct Item {
    uint64_t weight;
    bool leaf;
};

// Canonical codes in order of (length, symbol), first bit lowest.
template <class Visit>
void each_code(const CodeLengths& lengths, const Visit& visit) {
    uint32_t code = 0;
    for (int bits = 1; bits <= HUFFMAN_MAX_BITS; bits++, code <<= 1)
        for (int symbol = 0; symbol < 256; symbol++) {
            if (lengths.bits[symbol] != bits) continue;
            uint32_t reversed = 0;
            for (int k = 0; k < bits; k++) reversed |= (code >> k & 1) << (bits - 1 - k);
            visit(symbol, bits, reversed);
            code++;
        }
}

}  // namespace

// Level k of package-merge holds all leaves and the pairs of level k - 1, by weight (leaves first among equals). Taking
// the 2 n - 2 lightest of the last level fixes how many of every level are taken, and always the lightest leaves.
void code_lengths(const uint64_t* weights, CodeLengths* lengths) {
    int order[256], n = 0;
    for (int s = 0; s < 256; s++)
        if (weights[s] > 0) order[n++] = s;
    std::stable_sort(order, order + n, [&](int a, int b) { return weights[a] < weights[b]; });
    Item level[HUFFMAN_MAX_BITS][512];
    int size[HUFFMAN_MAX_BITS];
    for (int k = 0; k < HUFFMAN_MAX_BITS; k++) {
        const int pairs = k == 0 ? 0 : size[k - 1] / 2;
        int leaf = 0, pair = 0;
        size[k] = n + pairs;
        for (int i = 0; i < size[k]; i++) {
            const uint64_t packed = pair < pairs ? level[k - 1][2 * pair].weight + level[k - 1][2 * pair + 1].weight : 0;
            const bool take_leaf = leaf < n && (pair == pairs || weights[order[leaf]] <= packed);
            level[k][i] = take_leaf ? Item{weights[order[leaf++]], true} : Item{packed, false};
            pair += !take_leaf;
        }
    }
    std::memset(lengths->bits, 0, sizeof lengths->bits);
    int taken = 2 * n - 2;
    for (int k = HUFFMAN_MAX_BITS - 1; k >= 0; k--) {
        const int leaves = int(std::count_if(level[k], level[k] + taken, [](const Item& i) { return i.leaf; }));
        for (int i = 0; i < leaves; i++) lengths->bits[order[i]]++;
        taken = 2 * (taken - leaves);
    }
}

bool is_complete(const CodeLengths& lengths, const uint8_t* valid) {
    int64_t kraft = 0;
    for (int s = 0; s < 256; s++) {
        const int bits = lengths.bits[s];
        if (bits == 0) continue;
        if (!valid[s] || bits > HUFFMAN_MAX_BITS) return false;
        kraft += HUFFMAN_WINDOWS >> bits;
    }
    return kraft == HUFFMAN_WINDOWS;
}

void make_encode_table(const CodeLengths& lengths, EncodeEntry* table) {
    std::memset(table, 0, 256 * sizeof *table);
    each_code(lengths, [&](int symbol, int bits, uint32_t code) { table[symbol] = code << 8 | uint32_t(bits); });
}

void make_decode_table(const CodeLengths& lengths, DecodeEntry* table) {
    each_code(lengths, [&](int symbol, int bits, uint32_t code) {
        for (int64_t w = code; w < HUFFMAN_WINDOWS; w += int64_t(1) << bits)
            table[w] = uint32_t(symbol) | uint32_t(bits) << 16 | uint32_t(bits) << 24 | 1u << 28;
    });
    // A second symbol where its code ends within the window. Entries below w are still single: w >> bits <= w, and 0 is
    // the only window that follows itself.
    for (int64_t w = HUFFMAN_WINDOWS - 1; w >= 0; w--) {
        const uint32_t one = table[w], bits = one >> 24 & 15;
        const uint32_t next = table[w >> bits], next_bits = next >> 24 & 15;
        if (bits + next_bits > uint32_t(HUFFMAN_MAX_BITS)) continue;
        table[w] = (one & 0xff) | (next & 0xff) << 8 | (bits + next_bits) << 16 | bits << 24 | 2u << 28;
    }
}

}  // namespace edgegossip::coding
