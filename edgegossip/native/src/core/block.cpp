#include "block.hpp"

#include <cstring>

#include "codes.hpp"
#include "quantised.hpp"

namespace edgegossip::coding {
namespace {

uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

int64_t decode_raw(const uint8_t* dense, int64_t n, const Quantiser& q, uint8_t* symbols, uint8_t* scratch) {
    if (has_padding(dense, n, q.bits)) return BAD_PADDING;
    uint8_t* const to = symbols != nullptr ? symbols : scratch;
    if (is_dense(q.bits))
        std::memcpy(to, dense, size_t(dense_bytes(n, q.bits)));
    else
        unpack_dense(dense, n, q.bits, to);
    return symbols != nullptr || are_codes(q, to, n) ? 0 : int64_t(BAD_CODE);
}

}  // namespace

int64_t encode_block(const Entropy& kernels, const uint8_t* symbols, int64_t n, int bits, const EncodeEntry* table, uint8_t* out) {
    const int64_t m = symbol_bytes(n, bits), raw = dense_bytes(n, bits);
    const int streams = streams_of(m);
    uint8_t* to = out + 2 * streams;
    for (int k = 0; k < streams; k++) {
        const int64_t first = m / 4 * k, count = k + 1 < streams ? m / 4 : m - first;
        const int64_t bytes = kernels.encode(symbols + first, count, table, to);
        out[2 * k] = uint8_t(bytes);
        out[2 * k + 1] = uint8_t(bytes >> 8);
        to += bytes;
    }
    if (to - out <= 2 + raw) return to - out;
    out[0] = out[1] = 0xff;
    if (is_dense(bits))
        std::memcpy(out + 2, symbols, size_t(raw));
    else
        pack_dense(symbols, n, bits, out + 2);
    return 2 + raw;
}

int64_t block_size(const uint8_t* p, const uint8_t* end, int64_t n, int bits) {
    const int streams = streams_of(symbol_bytes(n, bits));
    if (end - p < 2) return 0;
    int64_t size = 2;
    if (read16(p) == RAW_BLOCK) {
        size += dense_bytes(n, bits);
    } else {
        size = 2 * streams;
        if (end - p < size) return 0;
        for (int k = 0; k < streams; k++) size += read16(p + 2 * k);
    }
    return size <= end - p ? size : 0;
}

int64_t decode_block(const Entropy& kernels, const uint8_t* p, const uint8_t* end, int64_t n, const Quantiser& q,
                     const DecodeTable& table, uint8_t* symbols, uint8_t* scratch, const void* soon) {
    if (read16(p) == RAW_BLOCK) return decode_raw(p + 2, n, q, symbols, scratch);
    const int64_t m = symbol_bytes(n, q.bits);
    const int width = symbol_width(q.bits), streams = streams_of(m);
    const bool padded = n * width % 8 != 0;
    int64_t sizes[4] = {};
    for (int k = 0; k < streams; k++) sizes[k] = read16(p + 2 * k);
    uint8_t* const to = symbols == nullptr && padded ? scratch : symbols;
    if (!kernels.decode(p + 2 * streams, sizes, streams, end, table.entries, table.window, to, m, soon)) return BAD_STREAM;
    return padded && has_padding(to, n, width) ? int64_t(BAD_PADDING) : 0;
}

}  // namespace edgegossip::coding
