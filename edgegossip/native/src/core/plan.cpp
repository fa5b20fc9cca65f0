#include "plan.hpp"

#include <algorithm>
#include <cstring>

#include "block.hpp"
#include "codes.hpp"
#include "elias.hpp"

namespace edgegossip::coding {
namespace {

constexpr int64_t SMALL_VALUES = int64_t(1) << 18;
constexpr int64_t PIECE_VALUES = 2048, PIECES = 64, SAMPLED_PART = 16;
constexpr double LENGTH_BITS = 32;  // the payload's size

// Below this share of nonzeros a unit is long, so that its own bytes weigh little; above it, short.
constexpr int64_t SHORT_UNIT_SHARE = 25;

RunsPlan plan_runs(const Symbols& s, const Source& source, double scale, int64_t nonzeros, const LastTable& last) {
    RunsPlan plan;
    plan.run_bits = run_bits_for(nonzeros, s.count);
    plan.is_long = nonzeros * SHORT_UNIT_SHARE < s.count;
    uint32_t hist[256] = {};
    int64_t beside = 0;
    for (int64_t first = 0; first < s.count; first += plan.unit())
        beside += count_tokens(s.data.data() + symbol_bytes(first, source.q.bits), std::min(plan.unit(), s.count - first),
                               source.q.bits, plan.run_bits, hist);
    plan.table = choose_table(token_alphabet(source.q), hist, scale, last, StaticTables{});
    const int64_t units = (source.n + plan.unit() - 1) / plan.unit();
    plan.table.bits += scale * double(beside) + double(units * (8 * plan.size_bytes() + 4) + 8) + LENGTH_BITS;
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

bool Symbols::collect(uint8_t* scales_out) {
    const Quantiser& q = source.q;
    all = source.n <= SMALL_VALUES;
    const int64_t piece = all ? BLOCK_VALUES : std::max(PIECE_VALUES, q.bucket);
    const int64_t pieces = all ? (source.n + piece - 1) / piece : std::clamp<int64_t>(source.n / SAMPLED_PART / piece, 1, PIECES);
    std::vector<float> scales(static_cast<size_t>(BLOCK_SCALES));
    data.resize(size_t(symbol_bytes(pieces * piece, q.bits)));
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t first = all ? i * piece : source.n / pieces * i / piece * piece;
        const int64_t n = std::min(piece, source.n - first);
        if (!quantise(first, n, scales.data(), data.data() + symbol_bytes(count, q.bits))) return false;
        if (all && q.bucket > 0 && source.scales == nullptr)
            std::memcpy(scales_out + 4 * (first / q.bucket), scales.data(), size_t(4 * scale_count(n, q.bucket)));
        count += n;
    }
    return true;
}

Plan make_plan(const Symbols& s, const Source& source, Choice choice, const StaticTables& tables, const TableState& state) {
    const Quantiser& q = source.q;
    const double scale = double(source.n) / double(s.count);
    Plan plan;
    int64_t nonzeros = 0;
    const int64_t in_elias = elias_bits(s.data.data(), s.count, q.bits, &nonzeros);
    if (choice == Choice::ELIAS) {
        plan.stage = STAGE_ELIAS;
        return plan;
    }
    double best = double(8 * dense_bytes(source.n, q.bits));
    const auto consider = [&](Stage stage, double bits) {
        if (bits >= best) return;
        best = bits;
        plan.stage = stage;
    };
    if (q.bits <= 8) {
        uint32_t hist[256] = {};
        s.kernels.entropy.histogram(s.data.data(), symbol_bytes(s.count, q.bits), hist);
        plan.huffman = choose_table(symbol_alphabet(q), hist, scale, state.symbols, tables);
        const int64_t blocks = (source.n + BLOCK_VALUES - 1) / BLOCK_VALUES;
        consider(STAGE_HUFFMAN, plan.huffman.bits + double(blocks * 80) + LENGTH_BITS);
    }
    plan.runs = plan_runs(s, source, scale, nonzeros, state.tokens);
    consider(STAGE_RUNS, plan.runs.table.bits);
    if (choice == Choice::AUTO) consider(STAGE_ELIAS, scale * double(in_elias) + 32 + LENGTH_BITS);
    return plan;
}

}  // namespace edgegossip::coding
