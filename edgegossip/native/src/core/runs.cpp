#include "runs.hpp"

#include <algorithm>

#include "codes.hpp"
#include "elias.hpp"
#include "nonzeros.hpp"

namespace edgegossip::coding {
namespace {

// Level l >= 7 is sent as nibble 7 and omega(l - 6).
constexpr uint32_t ESCAPE = 7;

inline uint32_t token_of(uint32_t run_high, uint32_t sign, uint32_t level) {
    return run_high << 4 | sign << 3 | std::min(level, ESCAPE);
}

}  // namespace

// The mean run is about 1 / density. With 2^k near a fifth of it, 16 steps of 2^k reach 3 means, and taking the runs of a step for
// equally likely costs under .002 bit.
int run_bits_for(int64_t nonzeros, int64_t values) {
    const int64_t mean = values / std::max<int64_t>(nonzeros, 1);
    return std::clamp(bit_width(uint64_t(mean / 5)) - (mean < 5 ? 0 : 1), 0, MAX_RUN_BITS);
}

int64_t count_tokens(const uint8_t* symbols, int64_t n, int bits, int k, uint32_t* hist) {
    const uint32_t sign_at = uint32_t(bits) - 1, level_mask = (1u << sign_at) - 1;
    int64_t next = 0, beside = 0;
    each_nonzero(symbols, n, bits, [&](int64_t i, uint32_t code) {
        int64_t high = (i - next) >> k;
        hist[SKIP_TOKEN] += uint32_t(high / 15);
        high %= 15;
        const uint32_t level = code & level_mask;
        hist[token_of(uint32_t(high), code >> sign_at, level)]++;
        beside += k + (level >= ESCAPE ? omega(level - ESCAPE + 1).count : 0);
        next = i + 1;
        return true;
    });
    hist[SKIP_TOKEN] += uint32_t(((n - next) + (int64_t(15) << k) - 1) / (int64_t(15) << k));
    return beside;
}

bool RunsWriter::put(const uint8_t* symbols, int64_t n, int bits, int k, const EncodeEntry* table, const uint8_t* limit) {
    const uint32_t sign_at = uint32_t(bits) - 1, level_mask = (1u << sign_at) - 1;
    const int64_t step = int64_t(15) << k;
    const EncodeEntry skip = table[SKIP_TOKEN];
    int64_t next = -run;
    BitWriter w = out;
    const bool fits = each_nonzero(symbols, n, bits, [&](int64_t i, uint32_t code) {
        int64_t zeros = i - next;
        for (; zeros >= step; zeros -= step) {
            if (w.p >= limit) return false;
            w.put(skip >> 8, uint8_t(skip));
        }
        if (w.p >= limit) return false;
        const uint32_t level = code & level_mask;
        const EncodeEntry e = table[token_of(uint32_t(zeros >> k), code >> sign_at, level)];
        const uint64_t low = uint64_t(zeros) & ((uint64_t(1) << k) - 1);
        w.put(uint64_t(e >> 8) | low << uint8_t(e), uint8_t(e) + uint32_t(k));
        if (level >= ESCAPE) {
            const OmegaWord rest = omega(level - ESCAPE + 1);
            w.put(rest.bits, rest.count);
        }
        next = i + 1;
        return true;
    });
    out = w;
    run = n - next;
    return fits;
}

bool RunsWriter::finish(int k, const EncodeEntry* table, const uint8_t* limit) {
    const EncodeEntry skip = table[SKIP_TOKEN];
    for (; run > 0; run -= int64_t(15) << k) {
        if (out.p >= limit) return false;
        out.put(skip >> 8, uint8_t(skip));
    }
    out.p = out.finish();
    return true;
}

namespace {

// One token: the zeros before its code, and the code, 0 for a skip. False when its level is impossible.
inline bool read_token(BitReader* r, const Quantiser& q, int k, const DecodeEntry* table, int64_t* zeros, uint32_t* code) {
    const uint64_t bits = r->peek();
    const DecodeEntry e = decode_entry(table, bits);
    const uint32_t length = e >> 24 & 15, token = e & 0xff;
    if (token == SKIP_TOKEN) {
        *zeros += int64_t(15) << k;
        *code = 0;
        r->skip(length);
        return true;
    }
    *zeros += int64_t(token >> 4) << k | int64_t(bits >> length & ((uint64_t(1) << k) - 1));
    r->skip(length + k);
    uint64_t level = token & 7;
    if (level == ESCAPE) {
        const uint64_t rest = read_omega(r);
        if (rest == 0 || rest > uint64_t(max_level(q))) return false;
        level += rest - 1;
        if (level > uint64_t(max_level(q))) return false;
    }
    *code = (token >> 3 & 1) << (q.bits - 1) | uint32_t(level);
    return true;
}

template <int WIDTH>
bool get_of(RunsReader* reader, uint8_t* symbols, int64_t n, const Quantiser& q, int k, const DecodeEntry* table) {
    BitReader r = reader->in;
    int64_t at = reader->run;
    uint32_t code = reader->pending;
    bool good = true;
    for (;;) {
        if (code != 0 && at < n) {
            if (symbols != nullptr) set_code<WIDTH>(symbols, at, code);
            at++;
            code = 0;
        }
        if (at >= n) break;
        good = read_token(&r, q, k, table, &at, &code) && r.inside();
        if (!good) break;
    }
    reader->in = r;
    reader->run = at - n;
    reader->pending = code;
    return good;
}

}  // namespace

bool RunsReader::get(uint8_t* symbols, int64_t n, const Quantiser& q, int k, const DecodeEntry* table) {
    if (symbols != nullptr) std::memset(symbols, 0, size_t(symbol_bytes(n, q.bits)));
    switch (symbol_width(q.bits)) {
        case 2: return get_of<2>(this, symbols, n, q, k, table);
        case 4: return get_of<4>(this, symbols, n, q, k, table);
        case 8: return get_of<8>(this, symbols, n, q, k, table);
        default: return get_of<16>(this, symbols, n, q, k, table);
    }
}

}  // namespace edgegossip::coding
