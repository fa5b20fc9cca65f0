#include "codec/plan.hpp"

#include <algorithm>
#include <cstring>

#include "codec/block.hpp"
#include "codec/codes.hpp"
#include "codec/elias.hpp"
#include "codec/log2.hpp"
#include "codec/scales.hpp"

namespace edgegossip::coding {
namespace {

constexpr int64_t SMALL_VALUES = int64_t(1) << 18;
constexpr int64_t PIECE_VALUES = 2048, PIECES = 64, SAMPLED_PART = 16;
constexpr double LENGTH_BITS = 32;        // the payload's size
constexpr int64_t AROUND_STREAM = 20;     // bits of its size, and what fills its last byte

// Codes are so sparse when this share of the bytes of symbols is 0 that runs are taken without a look at Huffman codes of bytes.
constexpr int64_t SPARSE_SHARE_OF_3 = 2;
constexpr int64_t GLANCE_FROM = 4096, GLANCE_PIECE = 512, GLANCE_STEP = 8;  // bytes; one piece of 8 is looked at

int64_t values_of_last(int64_t n) { return (n - 1) % BLOCK_VALUES + 1; }

// Bits around the streams of blocks, of which the last one has so many.
double around_streams(int64_t n, int last) { return double(AROUND_STREAM * (4 * ((n - 1) / BLOCK_VALUES) + last)); }

RunsPlan plan_runs(const Symbols& s, const Source& source, double scale, int64_t nonzeros, const LastTable& last) {
    RunsPlan plan;
    plan.shape = run_shape(source.q, run_bits_for(nonzeros, s.count), SIGNS_BESIDE);
    uint32_t hist[256] = {};
    SignsFound found;
    int64_t items = 0;
    plan.items.need(run_items_bound(s.all ? s.count : std::min(s.count, BLOCK_VALUES)));
    for (int64_t first = 0; first < s.count; first += BLOCK_VALUES) {
        uint32_t* const to = plan.items.data() + (s.all ? items : 0);
        plan.blocks.push_back(find_items(s.kernels.runs, s.data.data() + symbol_bytes(first, source.q.bits),
                                         std::min(BLOCK_VALUES, s.count - first), plan.shape, to, hist));
        found.look_at(to, plan.blocks.back().all());
        items += plan.blocks.back().all();
    }
    if (source.n >= ONE_SIGN_FROM) plan.shape.signs = found.signs();
    if (s.all && plan.shape.signs != SIGNS_BESIDE) take_signs(plan.items.data(), items, plan.shape.signs);  // all have that one
    plan.table = choose_table(token_alphabet(source.q), hist, scale, last, StaticTables{}, source.n);
    RunShape sure = plan.shape;
    if (!s.all) sure.signs = SIGNS_BESIDE;  // what a sample lacks may be elsewhere
    const int64_t beside = bits_beside(hist, sure);
    plan.table.bits += scale * double(beside) + around_streams(source.n, run_streams_of(values_of_last(source.n))) + 8 + LENGTH_BITS;
    return plan;
}

}  // namespace

bool Symbols::quantise(int64_t first, int64_t n, float* scales, uint8_t* symbols) const {
    const Quantiser& q = source.q;
    if (q.bucket > 0 && source.scales == nullptr)
        return kernels.quantise.quantise_with_norms(source.x + first, n, &q, source.norm, source.key, first, scales, symbols);
    const float* const given = source.scales == nullptr ? whole : source.scales;
    kernels.quantise.quantise(source.x + first, n, &q, source.key, first, q.bucket > 0 ? given + first / q.bucket : given, symbols);
    return true;
}

// Start of piece i: somewhere in the i-th of equal parts, at a multiple of the piece. Not at the same place in each, because
// what repeats in a tensor (rows, channels) would then be sampled at one phase only.
static int64_t sampled_start(int64_t i, int64_t part, int64_t piece) {
    uint64_t mixed = uint64_t(i + 1) * 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed ^= mixed >> 27;
    const int64_t room = part - piece;
    const int64_t shift = room > 0 ? int64_t(mixed % uint64_t(room)) : 0;
    return (part * i + shift) / piece * piece;
}

bool Symbols::collect(uint8_t* scales_out) {
    const Quantiser& q = source.q;
    all = source.n <= SMALL_VALUES;
    const int64_t piece = all ? BLOCK_VALUES : std::max(PIECE_VALUES, q.bucket);
    const int64_t pieces = all ? (source.n + piece - 1) / piece : std::clamp<int64_t>(source.n / SAMPLED_PART / piece, 1, PIECES);
    Scratch<float> scales(scale_count(std::min(piece, source.n), q.bucket));
    data.need(symbol_bytes(std::min(pieces * piece, source.n), q.bits));
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t first = all ? i * piece : sampled_start(i, source.n / pieces, piece);
        const int64_t n = std::min(piece, source.n - first);
        if (!quantise(first, n, scales.data(), data.data() + symbol_bytes(count, q.bits))) return false;
        if (all && q.bucket > 0 && source.scales == nullptr)
            put_short(scales.data(), scale_count(n, q.bucket), scales_out + 2 * (first / q.bucket));
        count += n;
    }
    return true;
}

namespace {

// Values that are not zero.
struct Nonzeros {
    int64_t count = 0;
    int64_t in_levels = 0;  // bits of their Elias codes without the gaps' words, of which none takes less than one
};

// A tensor's byte symbols, counted.
struct Counts {
    uint32_t bytes[256] = {};
    int64_t all = 0;

    // Of a piece of GLANCE_PIECE bytes in `step`.
    Counts(const Symbols& s, const Quantiser& q, int64_t step) {
        const int64_t total = symbol_bytes(s.count, q.bits);
        const int64_t piece = step == 1 ? total : GLANCE_PIECE;
        for (int64_t first = 0; first < total; first += step * piece) {
            const int64_t count = std::min(piece, total - first);
            s.kernels.entropy.histogram(s.data.data() + first, count, bytes);
            all += count;
        }
    }

    Nonzeros nonzeros(const Quantiser& q) const {
        const int width = symbol_width(q.bits);
        uint64_t codes[256] = {};
        for (int at = 0; at < 8; at += width) count_field(bytes, at, width, codes);
        const uint32_t level_mask = (1u << (q.bits - 1)) - 1;
        Nonzeros found;
        for (uint32_t code = 1; code < 1u << width; code++) {
            if (codes[code] == 0) continue;
            found.count += int64_t(codes[code]);
            found.in_levels += int64_t(codes[code]) * (1 + omega(code & level_mask).count);
        }
        return found;
    }

    // A byte of zeros gets a code of one bit then, which may be far above its worth.
    bool has_frequent_zeros() const { return 5 * int64_t(bytes[0]) > 2 * all; }

    // Bits of a Huffman code of these bytes at least.
    double least_huffman() const {
        if (!has_frequent_zeros()) return entropy_bits(bytes, 256);
        return double(all) + entropy_bits(bytes + 1, 255);  // 1 bit for each, the first; what an ideal code takes for the others
    }
};

// Whether of the bytes that a glance looks at so many are 0.
bool looks_sparse(const Symbols& s, const Quantiser& q) {
    const int64_t total = symbol_bytes(s.count, q.bits);
    int64_t zeros = 0, all = 0;
    for (int64_t first = 0; first < total; first += GLANCE_STEP * GLANCE_PIECE) {
        const uint8_t *p = s.data.data() + first, *const end = p + std::min(GLANCE_PIECE, total - first);
        all += end - p;
        for (; end - p >= 128; p += 128) {
            uint8_t some = 0;  // a byte is enough for them, and an addition takes as many at once as a vector has
            for (int k = 0; k < 128; k++) some = uint8_t(some + (p[k] == 0));
            zeros += some;
        }
        zeros += std::count(p, end, uint8_t(0));
    }
    return 3 * zeros > SPARSE_SHARE_OF_3 * all;
}

// What was considered, the smallest so far in `coder`.
struct Contest {
    Plan* plan;
    double best;
    void consider(Coder coder, double bits) {
        if (bits >= best) return;
        best = bits;
        plan->coder = coder;
    }
};

}  // namespace

// Coders that cannot win are not worked out. Runs of zeros win where Huffman coded bytes waste much of a bit on a byte of zeros.
Plan make_plan(const Symbols& s, const Source& source, Choice choice, const StaticTables& tables, const TableState& state) {
    const Quantiser& q = source.q;
    const double scale = double(source.n) / double(s.count);
    Plan plan;
    Contest contest{&plan, double(8 * dense_bytes(source.n, q.bits))};
    int64_t in_elias = 0, nonzeros = 0;
    if (q.bits > 8) {
        in_elias = elias_bits(s.data.data(), s.count, q.bits, &nonzeros);
        plan.runs = plan_runs(s, source, scale, nonzeros, state.tokens);
        contest.consider(CODER_RUNS, plan.runs.table.bits);
    } else {
        if (choice == Choice::HUFFMAN && symbol_bytes(s.count, q.bits) >= GLANCE_FROM) {
            if (looks_sparse(s, q)) {
                const Counts glance(s, q, GLANCE_STEP);
                plan.runs = plan_runs(s, source, scale, glance.nonzeros(q).count * symbol_bytes(s.count, q.bits) / glance.all, state.tokens);
                contest.consider(CODER_RUNS, plan.runs.table.bits);
                return plan;
            }
        }
        const Counts counts(s, q, 1);
        // Runs decode more slowly, so where they gain little they are for `auto` alone.
        if (counts.has_frequent_zeros() || (choice == Choice::AUTO && 4 * int64_t(counts.bytes[0]) > counts.all)) {
            plan.runs = plan_runs(s, source, scale, counts.nonzeros(q).count, state.tokens);
            contest.consider(CODER_RUNS, plan.runs.table.bits);
        }
        const double around = around_streams(source.n, streams_of(symbol_bytes(values_of_last(source.n), q.bits))) + LENGTH_BITS;
        if (scale * counts.least_huffman() + around < contest.best) {
            plan.huffman = choose_table(symbol_alphabet(q), counts.bytes, scale, state.symbols, tables, source.n);
            contest.consider(CODER_HUFFMAN, plan.huffman.bits + around);
        }
        if (choice == Choice::AUTO) {
            const Nonzeros found = counts.nonzeros(q);
            in_elias = found.in_levels + found.count;
            if (scale * double(in_elias) + 32 + LENGTH_BITS < contest.best)
                in_elias = elias_bits(s.data.data(), s.count, q.bits, &nonzeros);
        }
    }
    if (choice == Choice::AUTO) contest.consider(CODER_ELIAS, scale * double(in_elias) + 32 + LENGTH_BITS);
    return plan;
}

}  // namespace edgegossip::coding
