#include "codec/ans.hpp"

#include <algorithm>
#include <cstring>

#include "codec/bits.hpp"
#include "codec/codes.hpp"
#include "codec/huffman.hpp"
#include "codec/log2.hpp"
#include "codec/quantised.hpp"

namespace edgegossip::coding {
namespace {

constexpr int SPREAD = 163;                     // states between two of a code: prime to 256, near 5/8 of it
constexpr int64_t RARE = 2048;                  // fewer than one in so many are strays: a state costs all others 1/177 bit, a stray 16 or so
constexpr int64_t HEAD = 4 + ANS_LANES + ANS_STRINGS;
constexpr int64_t AROUND_ANS_BLOCK = 8 * HEAD + ANS_STRINGS * 4 + 40;  // bits; a first word's last byte, zeros before the words' end
constexpr double ABOVE_SHARES = 1.002;          // what a table takes more than an ideal code of its shares, at most

void write16(uint16_t v, uint8_t* p) {
    p[0] = uint8_t(v);
    p[1] = uint8_t(v >> 8);
}

// What a share of one more state saves.
uint64_t gain(uint64_t count, int share) { return count * (log2_fixed(uint64_t(share) + 1) - log2_fixed(uint64_t(share))); }

// Calls visit(state, code, which of the code's states it is, from its share on).
template <class Visit>
void each_state(const AnsShape& shape, const Visit& visit) {
    uint8_t code_of[ANS_STATES];
    int at = 0, next[16];
    for (int code = 0; code < 16; code++) {
        next[code] = shape.share[code];
        for (int k = 0; k < shape.share[code]; k++, at = (at + SPREAD) % ANS_STATES) code_of[at] = uint8_t(code);
    }
    for (int s = 0; s < ANS_STATES; s++) visit(s, code_of[s], next[code_of[s]]++);
}

}  // namespace

uint8_t ans_filling(const AnsShape& shape) { return uint8_t(std::max_element(shape.share, shape.share + 16) - shape.share); }

bool has_ans(const Quantiser& q, int64_t n) { return symbol_width(q.bits) == 4 && n >= ANS_FROM; }

AnsChoice choose_shares(const Quantiser& q, const uint64_t* counts, double scale, int64_t n) {
    AnsChoice c{};
    uint64_t all = 0, held[16] = {};
    int order[16], codes = 0;
    for (int code = 0; code < 16; code++) {
        if (!is_code(q, uint32_t(code))) continue;
        all += counts[code];
        order[codes++] = code;
    }
    std::stable_sort(order, order + codes, [&](int a, int b) { return counts[a] > counts[b]; });
    int kept = 2, sum = 0;
    while (kept < codes && counts[order[kept]] * RARE > all) kept++;
    uint64_t strays = 0;
    for (int k = kept; k < codes; k++) strays += counts[order[k]];
    for (int k = 0; k < kept; k++) {
        const int code = order[k];
        held[code] = counts[code] + (k == 0 ? strays : 0);
        const uint64_t part = all == 0 ? 1 : held[code] * ANS_STATES / all;
        c.shape.share[code] = uint8_t(std::clamp<uint64_t>(part, 1, 255));
        sum += c.shape.share[code];
    }
    for (; sum != ANS_STATES; sum += sum < ANS_STATES ? 1 : -1) {
        int best = -1;
        for (int k = 0; k < kept; k++) {
            const int code = order[k], share = c.shape.share[code];
            if (sum < ANS_STATES ? share == 255 : share == 1) continue;
            if (best < 0)
                best = code;
            else if (sum < ANS_STATES ? gain(held[code], share) > gain(held[best], c.shape.share[best])
                                      : gain(held[code], share - 1) < gain(held[best], c.shape.share[best] - 1))
                best = code;
        }
        c.shape.share[best] = uint8_t(c.shape.share[best] + (sum < ANS_STATES ? 1 : -1));
    }
    uint64_t bits = 0;
    for (int k = 0; k < kept; k++) bits += held[order[k]] * ((8u << LOG2_FRACTION) - log2_fixed(c.shape.share[order[k]]));
    const double coded = double(bits) / double(1 << LOG2_FRACTION) * ABOVE_SHARES + 16.0 * double(strays);
    c.bits = scale * coded + double((n + BLOCK_VALUES - 1) / BLOCK_VALUES * AROUND_ANS_BLOCK) + 8 * codes;
    return c;
}

int write_shares(const AnsShape& shape, const Quantiser& q, uint8_t* out) {
    int used = 0;
    for (int code = 0; code < 16; code++)
        if (is_code(q, uint32_t(code))) out[used++] = shape.share[code];
    return used;
}

int read_shares(const uint8_t* p, const uint8_t* end, const Quantiser& q, AnsShape* shape) {
    int used = 0, sum = 0;
    *shape = {};
    for (int code = 0; code < 16; code++) {
        if (!is_code(q, uint32_t(code))) continue;
        if (p + used >= end) return 0;
        sum += shape->share[code] = p[used++];
    }
    return sum == ANS_STATES ? used : 0;
}

AnsTable ans_table(const AnsShape& shape) {
    AnsTable table;
    each_state(shape, [&](int s, uint8_t code, int which) {
        const int bits = 9 - bit_width(uint64_t(which));
        table.code[s] = uint8_t(code << 4 | bits);
        table.base[s] = uint8_t((which << bits) - ANS_STATES);
    });
    table_work() += ANS_STATES;
    return table;
}

AnsCodes ans_codes(const AnsShape& shape) {
    AnsCodes c{};
    c.filling = ans_filling(shape);
    int before = 0;
    for (int code = 0; code < 16; code++) {
        const int share = shape.share[code];
        c.instead[code] = uint8_t(share > 0 ? code : c.filling);
        if (share == 0) continue;
        c.most[code] = uint8_t(9 - bit_width(uint64_t(share)));
        c.limit[code] = uint8_t((share << c.most[code]) - ANS_STATES);
        c.first[code] = uint8_t(before - share);
        before += share;
    }
    each_state(shape, [&](int s, uint8_t code, int which) { c.next[uint8_t(c.first[code] + which)] = uint8_t(s); });
    return c;
}

namespace {

// Rows after the last whole one: what is left of a block, filled up.
struct LastRow {
    uint8_t symbols[ANS_ROW_BYTES];
    int64_t rows;

    LastRow(const uint8_t* all, int64_t n, int fill) : rows(n % ANS_ROW > 0) {
        const int64_t rest = n % ANS_ROW;
        std::memset(symbols, 17 * fill, sizeof symbols);
        std::memcpy(symbols, all + n / ANS_ROW * ANS_ROW_BYTES, size_t(rest / 2));
        if (rest % 2 == 1) symbols[rest / 2] = uint8_t((all[n / 2] & 15) | fill << 4);
    }
};

}  // namespace

int64_t write_ans_block(const Ans& kernels, const uint8_t* symbols, int64_t n, const AnsCodes& codes, uint8_t* out) {
    uint16_t* const strays = reinterpret_cast<uint16_t*>(out + HEAD);
    static_assert(HEAD % alignof(uint16_t) == 0);
    const int64_t found = kernels.strays(symbols, n, codes, strays, most_ans_strays(n));
    if (found < 0) return 0;
    const LastRow last(symbols, n, codes.filling);
    AnsPlace place;
    std::memset(&place, 0, sizeof place);
    uint8_t* end = out + ans_block_bound(n) - 8;  // where a writer may look
    uint8_t* from = kernels.write(last.symbols, last.rows, codes, end, &place);
    from = kernels.write(symbols, n / ANS_ROW, codes, from, &place);
    from -= sizeof place.after;
    std::memcpy(from, place.after, sizeof place.after);
    const auto ends_in_zero = [&] {
        uint64_t word;
        std::memcpy(&word, end - 8, sizeof word);
        return word == 0;
    };
    while (end > from && ends_in_zero()) end -= 8;
    write16(uint16_t((end - from) / 8), out);
    write16(uint16_t(found), out + 2);
    std::memcpy(out + 4, place.state, ANS_LANES);
    uint8_t* to = out + HEAD + 2 * found;
    for (int k = 0; k < ANS_STRINGS; k++) {
        const uint64_t gone = place.used[k] / 8;
        out[4 + ANS_LANES + k] = uint8_t(place.used[k]);
        const uint64_t left = place.word[k] >> 8 * gone;
        std::memcpy(to, &left, 8 - gone);
        to += 8 - gone;
    }
    std::memmove(to, from, size_t(end - from));
    return to + (end - from) - out;
}

int64_t ans_block_size(const uint8_t* p, const uint8_t* end) {
    if (end - p < HEAD) return 0;
    int64_t size = HEAD + 8 * read16(p) + 2 * read16(p + 2);
    for (int k = 0; k < ANS_STRINGS; k++) {
        const int used = p[4 + ANS_LANES + k];
        if (used >= 64) return 0;
        size += 8 - used / 8;
    }
    return size <= end - p ? size : 0;
}

AnsParts ans_parts(const uint8_t* p, int64_t n, AnsPlace* place) {
    const int64_t words = read16(p), first = std::min<int64_t>(words, ANS_STRINGS), strays = read16(p + 2);
    AnsParts parts{p + HEAD, strays, nullptr, nullptr, strays <= most_ans_strays(n)};
    std::memset(place, 0, sizeof *place);
    std::memcpy(place->state, p + 4, ANS_LANES);
    const uint8_t* at = parts.strays + 2 * strays;
    for (int k = 0; k < ANS_STRINGS; k++) {
        const uint32_t used = p[4 + ANS_LANES + k], gone = used / 8;
        uint64_t left = 0;
        std::memcpy(&left, at, 8 - gone);
        at += 8 - gone;
        parts.good &= (left & ((1u << used % 8) - 1)) == 0;
        place->word[k] = left << 8 * gone;
        place->used[k] = used;
    }
    std::memcpy(place->after, at, size_t(8 * first));
    parts.words = at + 8 * first;
    parts.words_end = at + 8 * words;
    parts.good &= words == 0 || std::any_of(parts.words_end - 8, parts.words_end, [](uint8_t byte) { return byte != 0; });
    return parts;
}

}  // namespace edgegossip::coding
