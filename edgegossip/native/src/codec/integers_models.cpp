// Which models a string has. Blocks are sorted by how loud they are, in half octaves, and by whether most of what they hold is above or
// below zero: values of a gradient's row have factors in common, their signs with them. Neighbours in that order share a model where the
// tables that this saves are worth more than the bits it costs. All of it is integer arithmetic, as every machine must make the same choice.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "codec/integers.hpp"
#include "codec/log2.hpp"

namespace edgegossip::coding {
namespace {

constexpr int LOUDNESS = 32;             // half octaves of a block's sum of magnitudes, at most 64 127
constexpr uint64_t BIT = 1u << LOG2_FRACTION;
constexpr uint64_t MODEL_BITS = 16, LEVEL_BITS = 5;
constexpr uint64_t A_SLOT = 23;           // 2^16 log2(e) / RANS_SLOTS: what one slot less costs a value, in 2^-16 bits
constexpr uint64_t INDEX_BITS = 64;        // around the string of blocks' models
constexpr uint64_t ESCAPE_BITS = 20, FIRST_ESCAPE_BITS = 80;  // about
constexpr uint32_t HALF_OCTAVES[2] = {1u << 20, 741455};      // 2^20, 2^19.5

// How often each symbol occurs in each table.
struct Counts {
    uint32_t of[4][256] = {};
    int64_t blocks = 0;
    int end = 0;  // beyond the last symbol that occurs; found by `finish`

    void finish() {
        for (int s = 0; s < 256; s++)
            if (of[0][s] + of[1][s] + of[2][s] + of[3][s] > 0) end = s + 1;
    }
    void add(const Counts& other) {
        end = std::max(end, other.end);
        for (int t = 0; t < 4; t++)
            for (int s = 0; s < other.end; s++) of[t][s] += other.of[t][s];
        blocks += other.blocks;
    }
};

int magnitude_of(int symbol) { return (symbol + 1) / 2; }

// Blocks are of a class: how loud they are, and skew 1 or -1 where more than two thirds of that are above or below zero. From those below
// zero, loud to quiet, classes go on to what is neither, quiet to loud, and to those above zero, loud to quiet: neighbours are alike.
constexpr int CLASSES = 3 * LOUDNESS + 1;
int class_of(int loudness, int skew) { return skew < 0 ? LOUDNESS - loudness : skew == 0 ? LOUDNESS + loudness : CLASSES - loudness; }
int unskewed(int of) { return of < LOUDNESS ? 2 * LOUDNESS - of : of > 2 * LOUDNESS ? CLASSES + LOUDNESS - of : of; }

int class_of(const uint8_t* symbols, int64_t n, bool skewed) {
    uint32_t sum = 0, above = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t odd = symbols[i] & 1u, magnitude = symbols[i] / 2u + odd;
        sum += magnitude;
        above += magnitude & -odd;
    }
    if (sum == 0) return class_of(0, 0);
    return class_of(1 + int(log2_fixed(sum) >> (LOG2_FRACTION - 1)), skewed ? (3 * above > 2 * sum) - (3 * above < sum) : 0);
}

struct Cost {
    uint64_t bits;  // in 2^-16
    int largest;
};

// What a model of two groups' counts (or of one's) costs, tables and all, and the magnitude beyond which values had better be escapes.
Cost cost_of(const Counts& c, const Counts* more, Tables kind) {
    const bool magnitudes = kind == Tables::MAGNITUDES;
    const int tables = tables_of(kind), end = more == nullptr ? c.end : std::max(c.end, more->end);
    uint32_t joined[4][257];  // by table
    for (int t = 0; t < tables; t++) std::fill(joined[t], joined[t] + end + 1, 0u);
    for (int t = 0; t < 4; t++) {
        uint32_t* const to = joined[t % tables];
        for (int s = 0; s < end; s++) to[s] += c.of[t][s];
        for (int s = 0; more != nullptr && s < end; s++) to[s] += more->of[t][s];
    }
    uint64_t tail[MOST_MAGNITUDE + 2] = {}, total[4] = {}, all = 0;
    for (int t = 0; t < tables; t++) {
        for (int s = 0; s < end; s++) {
            total[t] += joined[t][s];
            tail[std::min(magnitude_of(s), MOST_MAGNITUDE + 1)] += joined[t][s];
        }
        all += total[t];
    }
    for (int m = std::min(end / 2, MOST_MAGNITUDE); m >= 0; m--) tail[m] += tail[m + 1];  // of magnitude m or more
    if (tail[1] == 0) return {MODEL_BITS * BIT, 0};
    const uint64_t a_level = LEVEL_BITS * BIT * uint64_t(tables) * (magnitudes ? 1 : 2);
    Cost best{UINT64_MAX, 0};
    uint64_t slots = 0;  // what slots of rare symbols cost all others
    for (int h = 1; h <= MOST_MAGNITUDE; h++) {
        for (int t = 0; t < tables; t++) {
            const uint32_t *const count = joined[t] + 2 * h - 1, both = count[0] + count[1];
            for (int sign = 0; sign < 2; sign++) {
                const uint64_t twice = magnitudes ? both : 2 * uint64_t(count[sign]);
                if (twice > 0 && RANS_SLOTS / 2 * twice < total[t]) slots += (total[t] - RANS_SLOTS / 2 * twice) * A_SLOT;
            }
        }
        const uint64_t escapes = tail[h + 1];
        const uint64_t bits = a_level * uint64_t(h) + slots + (escapes ? (FIRST_ESCAPE_BITS + ESCAPE_BITS * escapes) * BIT + all * A_SLOT : 0);
        if (bits < best.bits) best = {bits, h};
        if (escapes == 0) break;
    }
    uint64_t bits = (MODEL_BITS + LEVEL_BITS * uint64_t(tables)) * BIT + best.bits;
    for (int t = 0; t < tables; t++) {
        uint64_t known = 0, sum = 0;
        for (int s = 0; s <= 2 * best.largest; s++) {
            uint64_t count = joined[t][s];
            if (magnitudes && s > 0) {  // each sign is half of both
                count += joined[t][++s];
                bits += count * BIT;
            }
            if (count == 0) continue;
            known += count;
            sum += count * log2_fixed(count);
        }
        if (known) bits += known * log2_fixed(known) - sum;
    }
    return {bits, best.largest};
}

// What naming a model takes for so many of all blocks.
uint64_t naming(int64_t blocks, int64_t all) {
    return blocks == 0 ? 0 : uint64_t(blocks) * (log2_fixed(uint64_t(all)) - log2_fixed(uint64_t(blocks)));
}

// Half octaves that `count` of `total` is below 1.
uint8_t level_of(uint64_t count, uint64_t total) {
    if (count == 0) return NO_LEVEL;
    const uint64_t below = 2 * (log2_fixed(total) - std::min(log2_fixed(count), log2_fixed(total)));
    return uint8_t(std::min<uint64_t>((below + BIT / 2) >> LOG2_FRACTION, NO_LEVEL - 1));
}

Model model_of(const Counts& c, Tables kind) {
    const bool magnitudes = kind == Tables::MAGNITUDES;
    Model m;
    m.largest = cost_of(c, nullptr, kind).largest;
    if (m.largest == 0) return m;
    const int tables = tables_of(kind), symbols = 2 * m.largest + 1;
    uint64_t all = 0, escapes = 0;
    for (int t = 0; t < tables; t++) {
        uint64_t count[256] = {}, total = 0;
        for (int s = 0; s < 256; s++) {
            for (int place = t; place < 4; place += tables) count[s] += c.of[place][s];
            all += count[s];
            (s < symbols ? total : escapes) += count[s];
        }
        m.levels.push_back(level_of(count[0], total));
        for (int h = 1; h <= m.largest; h++) {
            const uint64_t plus = count[2 * h - 1], minus = count[2 * h];
            if (magnitudes) {
                m.levels.push_back(level_of(plus + minus, 2 * total));
            } else {
                m.levels.push_back(level_of(plus, total));
                m.levels.push_back(level_of(minus, total));
            }
        }
        if (total == 0) m.levels[m.levels.size() - size_t(magnitudes ? m.largest + 1 : symbols)] = 0;
    }
    if (escapes > 0) m.escapes = int(std::clamp<uint64_t>(RANS_SLOTS * escapes / all, 1, 255));
    return m;
}

// The blocks of a string.
struct Blocks {
    std::vector<Counts> room;                // of classes that occur: most do not
    std::array<Counts*, CLASSES> counts{};  // of each class, null where no block is of it
    std::vector<uint8_t> classes;            // of each block

    Blocks(const uint8_t* symbols, int64_t n, bool skewed, Tables kind) {
        room.reserve(CLASSES);
        classes.reserve(size_t((n + RANS_BLOCK - 1) / RANS_BLOCK));
        int table[RANS_ROW];
        for (int place = 0; place < RANS_ROW; place++) table[place] = table_of(kind, place);
        for (int64_t first = 0; first < n; first += RANS_BLOCK) {
            const int64_t count = std::min<int64_t>(RANS_BLOCK, n - first);
            const uint8_t* const block = symbols + first;
            classes.push_back(uint8_t(class_of(block, count, skewed)));
            Counts*& at = counts[classes.back()];
            if (at == nullptr) at = &room.emplace_back();
            at->blocks++;
            for (int64_t i = 0; i < count; i++) at->of[table[i % RANS_ROW]][block[i]]++;
        }
        for (Counts& c : room) c.finish();
    }

    // Blocks of one sign are as those of none.
    void join_signs() {
        for (int k = 0; k < CLASSES; k++) {
            if (k == unskewed(k) || counts[size_t(k)] == nullptr) continue;
            Counts*& to = counts[size_t(unskewed(k))];
            if (to == nullptr)
                to = counts[size_t(k)];
            else
                to->add(*counts[size_t(k)]);
            counts[size_t(k)] = nullptr;
        }
        for (uint8_t& k : classes) k = uint8_t(unskewed(k));
    }
};

Models models_for(const Blocks& string, int64_t n, Tables kind) {
    const int64_t blocks = int64_t(string.classes.size());
    const int most = int(std::clamp<int64_t>((1 + n / VALUES_A_TABLE) / tables_of(kind), 1, MOST_MODELS));
    std::vector<Counts> counts;
    std::vector<size_t> groups;  // their counts, in order
    std::vector<uint64_t> costs;
    uint8_t group_of[CLASSES] = {};
    for (int k = 0; k < CLASSES; k++) {
        if (string.counts[size_t(k)] == nullptr) continue;
        group_of[k] = uint8_t(groups.size());
        groups.push_back(groups.size());
        counts.push_back(*string.counts[size_t(k)]);
        costs.push_back(cost_of(counts.back(), nullptr, kind).bits + naming(counts.back().blocks, blocks));
    }
    // What joining groups k and k + 1 costs more.
    const auto joint = [&](size_t k) {
        const Counts &a = counts[groups[k]], &b = counts[groups[k + 1]];
        return int64_t(cost_of(a, &b, kind).bits + naming(a.blocks + b.blocks, blocks)) - int64_t(costs[k] + costs[k + 1]);
    };
    std::vector<int64_t> joints;
    for (size_t k = 0; k + 1 < groups.size(); k++) joints.push_back(joint(k));
    while (!joints.empty()) {
        const size_t k = size_t(std::min_element(joints.begin(), joints.end()) - joints.begin());
        if (joints[k] >= 0 && int(groups.size()) <= most) break;
        costs[k] = uint64_t(int64_t(costs[k] + costs[k + 1]) + joints[k]);
        counts[groups[k]].add(counts[groups[k + 1]]);
        groups.erase(groups.begin() + int64_t(k) + 1);
        costs.erase(costs.begin() + int64_t(k) + 1);
        joints.erase(joints.begin() + int64_t(k));
        for (uint8_t& g : group_of) g = uint8_t(g - (g > k));
        if (k < joints.size()) joints[k] = joint(k);
        if (k > 0) joints[k - 1] = joint(k - 1);
    }
    Models m{kind, {}, {}, 0};
    for (const uint64_t c : costs) m.bits += c >> LOG2_FRACTION;
    // Where nothing but chance makes blocks loud, one model is best, though no step on the way to it was worth taking.
    if (groups.size() > 1) {
        m.bits += INDEX_BITS;
        Counts all;
        for (const size_t g : groups) all.add(counts[g]);
        const uint64_t one = cost_of(all, nullptr, kind).bits >> LOG2_FRACTION;
        if (one <= m.bits) {
            counts[0] = all;
            groups.assign(1, 0);
            m.bits = one;
            std::fill(group_of, group_of + CLASSES, uint8_t(0));
        }
    }
    for (const size_t g : groups) m.models.push_back(model_of(counts[g], kind));
    m.index.reserve(string.classes.size());
    for (const uint8_t k : string.classes) m.index.push_back(group_of[k]);
    return m;
}

}  // namespace

Models choose_models(const uint8_t* symbols, int64_t n, StringShape shape) {
    Blocks blocks(symbols, n, shape != StringShape::NUMBERS, Tables::PLACES);
    Models best = models_for(blocks, n, Tables::ONE);
    const auto consider = [&](Models other, bool when_equal) {
        if (other.bits < best.bits + when_equal) best = std::move(other);
    };
    if (shape == StringShape::DITHERED && 1 + n / VALUES_A_TABLE >= 4) {
        consider(models_for(blocks, n, Tables::PLACES), false);
        if (2 * best.bits < uint64_t(n)) {  // with more bits a value blocks of one sign say more
            std::vector<uint8_t> mirrored(symbols, symbols + n);
            mirror(mirrored.data(), n);
            consider(models_for(Blocks(mirrored.data(), n, false, Tables::MIRRORED), n, Tables::MIRRORED), false);
        }
    }
    if (shape == StringShape::SIGNED) {
        blocks.join_signs();
        consider(models_for(blocks, n, Tables::MAGNITUDES), true);
    }
    return best;
}

bool shares_of(const Models& all, const Model& m, int table, uint32_t shares[256]) {
    std::fill(shares, shares + 256, 0u);
    const int symbols = 2 * m.largest + 1, row = all.levels(m) / all.tables();
    const uint32_t slots = RANS_SLOTS - uint32_t(m.escapes);
    uint64_t weight[256] = {}, sum = 0;
    for (int s = 0; s < symbols; s++) {
        const uint8_t level = m.levels[size_t(table * row + (all.kind == Tables::MAGNITUDES ? magnitude_of(s) : s))];
        if (level != NO_LEVEL) sum += weight[s] = HALF_OCTAVES[level & 1] >> (level >> 1);
    }
    if (sum == 0) return false;
    // One slot for each, and of the others what its part of them is above one: as a running sum, so that they are all given.
    uint64_t rest = slots, above = 0, before = 0;
    for (int s = 0; s < symbols; s++) {
        rest -= weight[s] > 0;
        weight[s] = weight[s] * slots > sum ? weight[s] * slots - sum : weight[s] > 0;
        above += weight[s];
    }
    for (int s = 0; s < symbols; s++) {
        if (weight[s] == 0) continue;
        const uint64_t after = before + weight[s];
        shares[s] = uint32_t(1 + after * rest / above - before * rest / above);
        before = after;
    }
    shares[RANS_ESCAPE] = uint32_t(m.escapes);
    return true;
}

}  // namespace edgegossip::coding
