// Which code a section uses, and how it says so in as few bytes as possible.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "codec/bits.hpp"
#include "codec/codes.hpp"
#include "codec/huffman.hpp"
#include "codec/log2.hpp"
#include "codec/kernels/runs.hpp"

namespace edgegossip::coding {
namespace {

constexpr int PRODUCT_BITS = 20;  // of the largest marginal, before products are taken

// The last table is taken again, and none is made, when it costs at most this much more than an ideal code and its
// transport would. About that much a Huffman code lies above the ideal.
constexpr double GOOD_ENOUGH = 1.01;
constexpr int64_t TRY_ALL_UP_TO = 2048;  // bytes

// A marginal weight as a byte: 4 bits of exponent, 4 of mantissa; 0 .. 15 are themselves, the largest is 31 << 14.
uint64_t expand(uint8_t b) { return b < 16 ? b : uint64_t(16 + (b & 15)) << ((b >> 4) - 1); }

uint8_t compress(uint64_t v) {
    if (v < 16) return uint8_t(v);
    const int shift = bit_width(v) - 5;
    const uint64_t rounded = shift == 0 ? v : (v + (uint64_t(1) << (shift - 1))) >> shift;  // 16 .. 32
    const uint64_t byte = uint64_t(shift + 1) * 16 + rounded - 16;
    return uint8_t(std::min<uint64_t>(byte, 255));
}

// Weights of all valid bytes from marginals. Only integers: every machine gets the same code. Products are cut as
// they grow, so that those of 8 fit: of 20 bits each two give 40, cut to 28, four 56, cut to 28, all 56, cut to 48.
void product_weights(const Alphabet& a, const uint64_t* marginals, uint64_t* weights) {
    uint64_t largest = 1;
    for (int k = 0; k < a.marginals; k++) largest = std::max(largest, marginals[k]);
    const int shift = std::max(0, PRODUCT_BITS - bit_width(largest));
    const int fields = 8 / a.width, mask = (1 << a.width) - 1;
    for (int s = 0; s < 256; s++) {
        uint64_t row[8];
        for (int k = 0; k < fields; k++) row[k] = marginals[a.first[k] + (s >> (k * a.width) & mask)] << shift;
        for (int count = fields; count > 1; count /= 2)
            for (int k = 0; k < count / 2; k++) {
                const uint64_t product = row[2 * k] * row[2 * k + 1];
                const int cut = fields == 2 ? 0 : count == 2 ? 8 : count == fields ? 12 : 28;
                row[k] = product >> cut;
            }
        weights[s] = a.valid[s] ? std::max<uint64_t>(1, row[0]) : 0;
    }
}

void finish_marginals(Alphabet* a) {
    if (a->width == 8) return;
    const int fields = 8 / a->width, mask = (1 << a->width) - 1;
    for (int s = 0; s < 256; s++)
        for (int k = 0; k < fields && a->valid[s]; k++) a->listed[a->first[k] + (s >> (k * a->width) & mask)] = 1;
}

void count_marginals(const Alphabet& a, const uint32_t* hist, uint64_t* marginals) {
    std::fill_n(marginals, MAX_MARGINALS, uint64_t(0));
    for (int k = 0; k < 8 / a.width; k++) count_field(hist, k * a.width, a.width, marginals + a.first[k]);
}

double cost(const CodeLengths& lengths, const uint32_t* hist, double scale) {
    uint64_t bits = 0;
    for (int s = 0; s < 256; s++) bits += uint64_t(hist[s]) * lengths.bits[s];
    return scale * double(bits);
}

bool covers(const CodeLengths& lengths, const uint8_t* valid) {
    for (int s = 0; s < 256; s++)
        if ((lengths.bits[s] > 0) != (valid[s] > 0)) return false;
    return true;
}

void static_lengths(const Alphabet& a, const StaticTables& tables, int row, CodeLengths* lengths) {
    uint64_t marginals[MAX_MARGINALS], weights[256];
    for (int k = 0; k < a.marginals; k++) marginals[k] = tables.weights[row * a.marginals + k];
    product_weights(a, marginals, weights);
    code_lengths(weights, lengths);
}

bool takes_static(const Alphabet& a, const StaticTables& tables) { return tables.count > 0 && a.width < 8 && a.first[1] == 0; }

void consider(TableChoice* best, const TableChoice& other) {
    if (other.bits < best->bits) *best = other;
}

TableChoice from_marginals(const Alphabet& a, const uint32_t* hist, double scale) {
    uint64_t marginals[MAX_MARGINALS], weights[256];
    count_marginals(a, hist, marginals);
    const uint64_t largest = std::max<uint64_t>(1, *std::max_element(marginals, marginals + a.marginals));
    TableChoice c;
    c.transport[0] = TABLE_MARGINALS;
    c.transport_bytes = 1;
    for (int k = 0; k < a.marginals; k++) {
        if (!a.listed[k]) continue;
        const int up = 19 - bit_width(largest);
        const uint64_t aligned = up >= 0 ? marginals[k] << up : marginals[k] >> -up;
        const uint8_t byte = std::max<uint8_t>(1, compress(aligned));
        c.transport[c.transport_bytes++] = byte;
        marginals[k] = expand(byte);
    }
    product_weights(a, marginals, weights);
    code_lengths(weights, &c.lengths);
    c.bits = cost(c.lengths, hist, scale) + 8 * c.transport_bytes;
    return c;
}

TableChoice from_histogram(const Alphabet& a, const uint32_t* hist, double scale) {
    uint64_t weights[256];
    for (int s = 0; s < 256; s++) weights[s] = a.valid[s] ? 16 * uint64_t(hist[s]) + 1 : 0;  // what a sample lacks has a code too
    TableChoice c;
    code_lengths(weights, &c.lengths);
    c.transport[0] = TABLE_LENGTHS;
    std::memset(c.transport + 1, 0, sizeof c.transport - 1);
    int at = 0;
    for (int s = 0; s < 256; s++) {
        if (!a.valid[s]) continue;
        c.transport[1 + at / 2] |= uint8_t(c.lengths.bits[s] << (4 * (at & 1)));
        at++;
    }
    c.transport_bytes = 1 + (at + 1) / 2;
    c.bits = cost(c.lengths, hist, scale) + 8 * c.transport_bytes;
    return c;
}

}  // namespace

void count_field(const uint32_t* hist, int at, int width, uint64_t* counts) {
    const int values = 1 << width, each = 1 << at;  // bytes that differ below the field alone
    if (at == 0) {
        for (int rest = 0; rest < 256; rest += values)
            for (int v = 0; v < values; v++) counts[v] += hist[rest + v];
        return;
    }
    for (int rest = 0; rest < 256; rest += each << width)
        for (int v = 0; v < values; v++)
            counts[v] += std::accumulate(hist + rest + v * each, hist + rest + (v + 1) * each, uint64_t(0));
}

const EncodeEntry* encode_table(const CodeLengths& lengths) {
    struct Made {
        CodeLengths lengths;
        EncodeEntry entries[256];
    };
    thread_local Made last{};  // no code has only zeros for lengths
    if (std::memcmp(last.lengths.bits, lengths.bits, sizeof lengths.bits) != 0) {
        make_encode_table(lengths, last.entries);
        last.lengths = lengths;
    }
    return last.entries;
}

namespace {

// An alphabet and what it depends on.
struct Kept {
    int32_t bits = 0, levels = 0, kind = 0;
    Alphabet alphabet;
};

template <class Make>
const Alphabet& kept_alphabet(Kept* last, const Quantiser& q, const Make& make) {
    const int32_t levels = max_level(q);
    if (last->bits != q.bits || last->levels != levels || last->kind != q.kind) {
        last->alphabet = Alphabet{};
        make(&last->alphabet, levels);
        finish_marginals(&last->alphabet);
        last->bits = q.bits;
        last->levels = levels;
        last->kind = q.kind;
    }
    return last->alphabet;
}

}  // namespace

const Alphabet& symbol_alphabet(const Quantiser& q) {
    thread_local Kept last;
    return kept_alphabet(&last, q, [&](Alphabet* a, int32_t) {
        mark_symbols(q, a->valid);
        a->width = symbol_width(q.bits);
        a->marginals = a->width == 8 ? 0 : 1 << a->width;
    });
}

// Low nibble: the level or its class, 0 only for the byte of zeros alone; high nibble: a run of zeros, see runs.hpp.
const Alphabet& token_alphabet(const Quantiser& q) {
    thread_local Kept last;
    return kept_alphabet(&last, q, [](Alphabet* a, int32_t levels) {
        const uint32_t last = LevelClasses(levels).of(uint32_t(levels));
        for (uint32_t s = 0; s < 256; s++) a->valid[s] = s == RUN_SKIP || ((s & 15) > 0 && (s & 15) <= last);
        a->width = 4;
        a->first[1] = 16;
        a->marginals = 32;
    });
}

namespace {

// What the kinds of tables would cost with ideal codes; infinite where there is no such table.
struct Ideals {
    double lengths, marginals, fixed;
    double least() const { return std::min({lengths, marginals, fixed}); }
};

Ideals ideals(const Alphabet& a, const uint32_t* hist, double scale, const StaticTables& tables) {
    constexpr double NEVER = std::numeric_limits<double>::infinity();
    const auto listed_bytes = [](const uint8_t* flags, int size) { return double(std::count(flags, flags + size, 1)); };
    Ideals costs{scale * entropy_bits(hist, 256) + 4 * listed_bytes(a.valid, 256) + 8, NEVER, NEVER};
    if (a.width == 8) return costs;
    uint64_t marginals[MAX_MARGINALS];
    count_marginals(a, hist, marginals);
    const int rows = a.marginals >> a.width, row = 1 << a.width;
    costs.marginals = 8 * (listed_bytes(a.listed, a.marginals) + 1);
    for (int k = 0; k < rows; k++) costs.marginals += scale * entropy_bits(marginals + k * row, row);
    if (!takes_static(a, tables) || tables.preferred < 0 || tables.preferred >= tables.count) return costs;
    const uint8_t* const weights = tables.weights + tables.preferred * row;
    uint64_t total = 0, bits = 0;
    for (int v = 0; v < row; v++) total += weights[v];
    if (total > 0)
        for (int v = 0; v < row; v++) bits += marginals[v] * (log2_fixed(total) - log2_fixed(std::max<uint64_t>(1, weights[v])));
    costs.fixed = 16 + scale * double(bits) / double(1 << LOG2_FRACTION);
    return costs;
}

TableChoice from_static(const Alphabet& a, const uint32_t* hist, double scale, const StaticTables& tables) {
    TableChoice c;
    static_lengths(a, tables, tables.preferred, &c.lengths);
    c.transport[0] = TABLE_STATIC;
    c.transport[1] = uint8_t(tables.preferred);
    c.transport_bytes = 2;
    c.bits = cost(c.lengths, hist, scale) + 16;
    return c;
}

}  // namespace

TableChoice choose_table(const Alphabet& a, const uint32_t* hist, double scale, const LastTable& last, const StaticTables& tables,
                         int64_t n) {
    TableChoice same;
    same.bits = std::numeric_limits<double>::infinity();
    if (last.known && covers(last.lengths, a.valid)) {
        same.lengths = last.lengths;
        same.transport[0] = TABLE_SAME;
        same.transport_bytes = 1;
        same.bits = cost(same.lengths, hist, scale) + 8;
    }
    if (n < MIN_TABLE_VALUES) return same;
    const Ideals ideal = ideals(a, hist, scale, tables);
    if (same.bits <= GOOD_ENOUGH * ideal.least()) return same;
    TableChoice best = same;
    // How near a code comes to its ideal differs between kinds; where a section is small the difference is worth the work.
    const bool all = std::accumulate(hist, hist + 256, int64_t(0)) <= TRY_ALL_UP_TO;
    const auto worth = [&](double kind) { return kind == ideal.least() || (all && std::isfinite(kind)); };
    if (worth(ideal.fixed)) consider(&best, from_static(a, hist, scale, tables));
    if (worth(ideal.marginals)) consider(&best, from_marginals(a, hist, scale));
    if (worth(ideal.lengths)) consider(&best, from_histogram(a, hist, scale));
    return best;
}

int read_table(const uint8_t* p, const uint8_t* end, const Alphabet& a, const LastTable& last, const StaticTables& tables,
               int64_t n, CodeLengths* lengths) {
    if (p >= end) return 0;
    const uint8_t kind = *p++;
    int used = 1;
    if (kind != TABLE_SAME) {
        if (n < MIN_TABLE_VALUES) return 0;
        table_work() += 256;
    }
    if (kind == TABLE_SAME && last.known) {
        *lengths = last.lengths;
    } else if (kind == TABLE_STATIC && takes_static(a, tables)) {
        if (p >= end || *p >= tables.count) return 0;
        static_lengths(a, tables, *p, lengths);
        used += 1;
    } else if (kind == TABLE_MARGINALS && a.width < 8) {
        uint64_t marginals[MAX_MARGINALS] = {}, weights[256];
        for (int k = 0; k < a.marginals; k++) {
            if (!a.listed[k]) continue;
            if (p >= end || *p == 0) return 0;
            marginals[k] = expand(*p++);
            used++;
        }
        product_weights(a, marginals, weights);
        code_lengths(weights, lengths);
    } else if (kind == TABLE_LENGTHS) {
        std::memset(lengths->bits, 0, sizeof lengths->bits);
        const int valid = int(std::count(a.valid, a.valid + 256, 1)), bytes = (valid + 1) / 2;
        if (end - p < bytes || (valid % 2 == 1 && p[bytes - 1] >> 4 != 0)) return 0;
        int at = 0;
        for (int s = 0; s < 256; s++) {
            if (!a.valid[s]) continue;
            lengths->bits[s] = p[at / 2] >> (4 * (at & 1)) & 15;
            at++;
        }
        used += bytes;
    } else {
        return 0;
    }
    return is_complete(*lengths, a.valid) ? used : 0;
}

}  // namespace edgegossip::coding
