#include "codec/integers.hpp"

#include <algorithm>
#include <cstring>

#include "codec/bits.hpp"
#include "codec/quantised.hpp"
#include "runtime/scratch.hpp"

namespace edgegossip::coding {
namespace {

constexpr uint64_t LANES_FROM = 1u << 16;  // bits of symbols: 32 states cost 64 bytes more than one
constexpr int WIDTH_BITS = 5;              // of plain values
constexpr size_t SMALL = 8;                  // bytes of a plain string that is not worth a model

uint32_t folded(int32_t v) { return v > 0 ? 2 * uint32_t(v) - 1 : 2 * uint32_t(-int64_t(v)); }
int32_t unfolded(uint32_t z) { return z & 1 ? int32_t((z + 1) / 2) : -int32_t(z / 2); }

int64_t blocks_in(int64_t n) { return (n + RANS_BLOCK - 1) / RANS_BLOCK; }

// Groups of 7 bits, low ones first, bit 7 in all but the last.
void put_number(uint64_t v, std::vector<uint8_t>* out) {
    for (; v >= 128; v >>= 7) out->push_back(uint8_t(v | 128));
    out->push_back(uint8_t(v));
}

// False when it is longer than it need be, too large for a size, or beyond `end`.
bool get_number(const uint8_t** p, const uint8_t* end, int64_t* v) {
    *v = 0;
    for (int shift = 0; shift < 35 && *p < end; shift += 7) {
        const uint8_t byte = *(*p)++;
        *v |= int64_t(byte & 127) << shift;
        if (byte < 128) return byte != 0 || shift == 0;
    }
    return false;
}

template <class Table>
RansModel<Table> model_at(const Models& all, size_t k, const Table* tables) {
    RansModel<Table> m{tables, {}, all.models[k].largest == 0};
    for (int place = 0; place < RANS_ROW; place++) m.at[place] = int32_t(k) * all.tables() + (all.tables() > 1 ? table_of(all.kind, place) : 0);
    return m;
}

// Bits, appended to bytes.
struct Bits {
    std::vector<uint8_t>* out;
    uint64_t held = 0;
    int count = 0;

    void put(uint64_t bits, int width) {
        held |= bits << count;
        for (count += width; count >= 8; count -= 8, held >>= 8) out->push_back(uint8_t(held));
    }
    void finish() {
        if (count > 0) out->push_back(uint8_t(held));
        held = 0;
        count = 0;
    }
};

// The widest value's bits.
int width_of(const Integers& integers) {
    uint8_t largest = 0;  // and one more, so that an escape is 0
    for (const uint8_t s : integers.symbols) {
        const uint8_t next = uint8_t(s + 1);
        largest = next > largest ? next : largest;
    }
    uint32_t most = largest == 0 ? 0 : largest - 1;
    for (const int32_t v : integers.wide) most = std::max(most, folded(v));
    return bit_width(most);
}

void write_plain(const Integers& integers, int width, std::vector<uint8_t>* out) {
    Bits bits{out};
    bits.put(width == 0 ? ALL_ZERO : PLAIN, 2);
    if (width > 0) {
        bits.put(uint64_t(width), WIDTH_BITS);
        size_t wide = 0;
        for (const uint8_t s : integers.symbols) bits.put(s == RANS_ESCAPE ? folded(integers.wide[wide++]) : s, width);
    }
    bits.finish();
}

void write_models(const Models& all, bool lanes, bool escapes, std::vector<uint8_t>* out) {
    Bits bits{out};
    bits.put(CODED, 2);
    bits.put(uint64_t(all.models.size() - 1), 4);
    bits.put(uint64_t(all.kind), 2);
    bits.put(lanes, 1);
    bits.put(escapes, 1);
    for (const Model& m : all.models) {
        bits.put(uint64_t(m.largest), 7);
        if (m.largest == 0) continue;
        if (escapes) bits.put(uint64_t(m.escapes), 8);
        for (const uint8_t level : m.levels) bits.put(level, 5);
    }
    bits.finish();
}

void make_symbols(const std::vector<uint32_t>& shares, RansSymbols* tables) {
    for (size_t table = 0; 256 * table < shares.size(); table++) {
        uint32_t first = 0;
        for (size_t s = 0; s < 256; s++) {
            const uint32_t share = shares[256 * table + s];
            tables[table][s] = {share ? (uint64_t(1) << 44) / share + 1 : 0, (share << (32 - RANS_BITS)) - 1, first << RANS_BITS | (share - 1)};
            first += share;
        }
    }
}

void write_nested(const Rans& kernels, const Integers& integers, int depth, std::vector<uint8_t>* out);

void write_coded(const Rans& kernels, const Integers& integers, StringShape shape, int depth, std::vector<uint8_t>* out) {
    const int64_t n = int64_t(integers.symbols.size());
    const Models all = choose_models(integers.symbols.data(), n, shape);
    const size_t tables = all.models.size() * size_t(all.tables());
    std::vector<uint32_t> shares(tables * 256);
    for (size_t k = 0; k < all.models.size(); k++)
        for (int t = 0; t < all.tables() && all.models[k].largest > 0; t++)
            shares_of(all, all.models[k], t, &shares[256 * (k * size_t(all.tables()) + size_t(t))]);
    // Of strings in this one, too, so it is filled when they are written.
    static thread_local Scratch<RansSymbols> room;
    room.need(int64_t(tables));
    std::vector<RansModel<RansSymbols>> models;
    for (size_t k = 0; k < all.models.size(); k++) models.push_back(model_at(all, k, room.data()));
    std::vector<int32_t> beyond;  // of escapes
    std::vector<uint8_t> marked;  // symbols, where they are not as they were: escapes among them, mirrored
    size_t wide = 0;
    for (int64_t first = 0; first < n; first += RANS_BLOCK) {
        const int largest = all.models[all.index[size_t(first / RANS_BLOCK)]].largest;
        const uint8_t* const block = integers.symbols.data() + first;
        const int64_t count = std::min<int64_t>(RANS_BLOCK, n - first);
        uint8_t loudest = 0;
        for (int64_t i = 0; i < count; i++) loudest = std::max(loudest, block[i]);
        if (loudest <= 2 * largest) continue;
        if (marked.empty()) marked = integers.symbols;
        for (int64_t i = 0; i < count; i++) {
            if (block[i] <= 2 * largest) continue;
            const int32_t v = block[i] == RANS_ESCAPE ? integers.wide[wide++] : unfolded(block[i]);
            beyond.push_back(v > 0 ? v - largest : v + largest);
            marked[size_t(first + i)] = RANS_ESCAPE;
        }
    }
    if (all.kind == Tables::MIRRORED) {
        if (marked.empty()) marked = integers.symbols;
        mirror(marked.data(), n);
    }
    const uint8_t* const symbols = marked.empty() ? integers.symbols.data() : marked.data();
    const bool lanes = all.bits >= LANES_FROM;
    write_models(all, lanes, !beyond.empty(), out);
    if (!beyond.empty()) {
        Integers escapes;
        put_integers(beyond.data(), int64_t(beyond.size()), &escapes);
        put_number(beyond.size(), out);
        write_nested(kernels, escapes, depth, out);
    }
    if (all.models.size() > 1) write_nested(kernels, {all.index, {}}, depth, out);
    make_symbols(shares, room.data());
    uint32_t state[RANS_LANES];
    std::fill(state, state + RANS_LANES, RANS_LOW);
    static thread_local Scratch<uint8_t> words;
    words.need(2 * n + 2);  // one more may be written over
    uint8_t* const end = words.data() + 2 * n + 2;
    const uint8_t* const begin =
        kernels.write(state, lanes ? RANS_LANES : 1, models.data(), all.index.data(), n, symbols, end);
    const uint8_t* const states = reinterpret_cast<const uint8_t*>(state);
    out->insert(out->end(), states, states + sizeof(uint32_t) * (lanes ? RANS_LANES : 1));
    out->insert(out->end(), begin, static_cast<const uint8_t*>(end));
}

void write_at(const Rans& kernels, const Integers& integers, StringShape shape, int depth, std::vector<uint8_t>* out) {
    const int width = width_of(integers);
    const size_t plain = width == 0 ? 1 : (2 + WIDTH_BITS + integers.symbols.size() * size_t(width) + 7) / 8, before = out->size();
    if (plain > SMALL && depth < MOST_DEPTH) {
        write_coded(kernels, integers, shape, depth + 1, out);
        if (out->size() - before < plain) return;
        out->resize(before);
    }
    write_plain(integers, width, out);
}

void write_nested(const Rans& kernels, const Integers& integers, int depth, std::vector<uint8_t>* out) {
    std::vector<uint8_t> nested;
    write_at(kernels, integers, StringShape::NUMBERS, depth, &nested);
    put_number(nested.size(), out);
    out->insert(out->end(), nested.begin(), nested.end());
}

// What is read, bit by bit.
struct Header {
    BitReader bits;

    uint32_t take(int width) {
        const uint64_t v = bits.peek() & ((uint64_t(1) << width) - 1);
        bits.skip(width);
        return uint32_t(v);
    }
};

int64_t read_plain(Header* header, int64_t n, Integers* out) {
    const int width = int(header->take(WIDTH_BITS));
    if (width == 0) return BAD_CODER;
    if (header->bits.used + n * width > 8 * header->bits.size) return ENDS_EARLY;
    std::vector<int32_t> values(static_cast<size_t>(n));
    for (int32_t& v : values) v = unfolded(header->take(width));
    put_integers(values.data(), n, out);
    return header->bits.at_end() ? 0 : int64_t(BAD_STREAM);
}

// The string of a size at *p.
int64_t read_nested(const Rans& kernels, const uint8_t** p, const uint8_t* end, int64_t n, int depth, Integers* out) {
    int64_t size;
    if (!get_number(p, end, &size) || size > end - *p) return ENDS_EARLY;
    const uint8_t* const first = *p;
    *p += size;
    return read_string(kernels, first, *p, n, depth + 1, out);
}

// Slots of all tables.
int64_t make_slots(const Models& all, RansSlots* slots) {
    for (size_t k = 0; k < all.models.size(); k++) {
        if (all.models[k].largest == 0) continue;
        for (int t = 0; t < all.tables(); t++) {
            uint32_t shares[256];
            if (!shares_of(all, all.models[k], t, shares)) return BAD_TABLE;
            uint32_t* to = slots[k * size_t(all.tables()) + size_t(t)];
            for (uint32_t s = 0; s < 256; s++)
                for (uint32_t j = 0; j < shares[s]; j++) *to++ = s | (shares[s] - 1) << 8 | j << 20;
        }
    }
    return 0;
}

int64_t read_coded(const Rans& kernels, Header* header, int64_t n, int depth, Integers* out) {
    Models all{};
    all.models.resize(header->take(4) + 1);
    all.kind = Tables(header->take(2));
    const bool lanes = header->take(1), has_escapes = header->take(1);
    const int64_t tables = int64_t(all.models.size()) * all.tables();
    if (tables > 1 + n / VALUES_A_TABLE) return BAD_TABLE;
    for (Model& m : all.models) {
        m.largest = int(header->take(7));
        if (m.largest == 0) continue;
        if (has_escapes) m.escapes = int(header->take(8));
        m.levels.resize(size_t(all.levels(m)));
        for (uint8_t& level : m.levels) level = uint8_t(header->take(5));
        if (!header->bits.inside()) return ENDS_EARLY;
    }
    const uint8_t *p = header->bits.p + (header->bits.used + 7) / 8, *const end = header->bits.p + header->bits.size;
    if (p > end) return ENDS_EARLY;
    if (header->bits.used & 7 && p[-1] >> (header->bits.used & 7)) return BAD_PADDING;
    std::vector<int32_t> beyond;
    if (has_escapes) {
        int64_t count;
        if (!get_number(&p, end, &count) || count == 0 || count > n) return BAD_STREAM;
        Integers escapes;
        if (const int64_t error = read_nested(kernels, &p, end, count, depth, &escapes)) return error;
        size_t wide = 0;
        beyond.resize(size_t(count));
        get_integers(escapes, 0, count, &wide, beyond.data());
    }
    Integers index;
    index.symbols.assign(size_t(blocks_in(n)), 0);
    if (all.models.size() > 1) {
        if (const int64_t error = read_nested(kernels, &p, end, blocks_in(n), depth, &index)) return error;
        if (*std::max_element(index.symbols.begin(), index.symbols.end()) >= all.models.size()) return BAD_CODE;
    }
    static thread_local Scratch<RansSlots> slots;
    slots.need(tables);
    if (const int64_t error = make_slots(all, slots.data())) return error;
    std::vector<RansModel<RansSlots>> models;
    for (size_t k = 0; k < all.models.size(); k++) models.push_back(model_at(all, k, slots.data()));
    RansStream stream{};
    const int64_t states = 4 * (lanes ? RANS_LANES : 1);
    if (end - p < states || ((end - p) & 1)) return ENDS_EARLY;
    std::memcpy(stream.state, p, size_t(states));
    stream.words = p + states;
    stream.end = end;
    out->symbols.resize(size_t(n));
    out->wide.clear();
    kernels.read(&stream, lanes ? RANS_LANES : 1, models.data(), index.symbols.data(), n, out->symbols.data());
    for (int k = 0; k < (lanes ? RANS_LANES : 1); k++)
        if (stream.state[k] != RANS_LOW) return BAD_STREAM;
    if (stream.words != stream.end) return BAD_STREAM;
    if (all.kind == Tables::MIRRORED) mirror(out->symbols.data(), n);
    size_t escape = 0;
    for (int64_t first = 0; has_escapes && first < n; first += RANS_BLOCK) {
        const Model& model = all.models[index.symbols[size_t(first / RANS_BLOCK)]];
        uint8_t* at = out->symbols.data() + first;
        uint8_t* const stop = out->symbols.data() + std::min(n, first + RANS_BLOCK);
        while (model.escapes > 0 && (at = static_cast<uint8_t*>(std::memchr(at, RANS_ESCAPE, size_t(stop - at)))) != nullptr) {
            if (escape == beyond.size() || beyond[escape] == 0) return BAD_CODE;
            const int32_t v = beyond[escape] > 0 ? beyond[escape] + model.largest : beyond[escape] - model.largest;
            escape++;
            *at++ = uint8_t(std::min<uint32_t>(folded(v), RANS_ESCAPE));
            if (at[-1] == RANS_ESCAPE) out->wide.push_back(v);
        }
    }
    return escape == beyond.size() ? 0 : int64_t(BAD_CODE);
}

}  // namespace

void put_integers(const int32_t* values, int64_t n, Integers* out) {
    out->symbols.resize(size_t(n));
    out->wide.clear();
    for (int64_t i = 0; i < n; i++) {
        const uint32_t z = folded(values[i]);
        out->symbols[size_t(i)] = uint8_t(std::min<uint32_t>(z, RANS_ESCAPE));
        if (z >= RANS_ESCAPE) out->wide.push_back(values[i]);
    }
}

void get_integers(const Integers& integers, int64_t first, int64_t n, size_t* wide, int32_t* values) {
    for (int64_t i = 0; i < n; i++) {
        const uint8_t s = integers.symbols[size_t(first + i)];
        values[i] = s == RANS_ESCAPE ? integers.wide[(*wide)++] : unfolded(s);
    }
}

void mirror(uint8_t* symbols, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint8_t s = symbols[i];
        const bool change = (i & 4) != 0 && s != 0 && s != RANS_ESCAPE;
        symbols[i] = uint8_t(change ? ((s - 1) ^ 1) + 1 : s);
    }
}

void write_string(const Rans& kernels, const Integers& integers, StringShape shape, std::vector<uint8_t>* out) {
    write_at(kernels, integers, shape, 0, out);
}

int64_t read_string(const Rans& kernels, const uint8_t* p, const uint8_t* end, int64_t n, int depth, Integers* out) {
    if (p == end) return ENDS_EARLY;
    if (depth > MOST_DEPTH) return BAD_CODER;
    Header header{{p, end - p}};
    switch (header.take(2)) {
        case ALL_ZERO:
            out->symbols.assign(size_t(n), 0);
            out->wide.clear();
            return header.bits.at_end() ? 0 : int64_t(BAD_STREAM);
        case PLAIN: return read_plain(&header, n, out);
        case CODED: return read_coded(kernels, &header, n, depth, out);
        default: return BAD_CODER;
    }
}

}  // namespace edgegossip::coding
