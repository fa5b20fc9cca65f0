#include "codec/block.hpp"

#include <algorithm>
#include <cstring>

#include "codec/bits.hpp"
#include "codec/codes.hpp"
#include "codec/quantised.hpp"

namespace edgegossip::coding {
namespace {

int64_t unpack_raw(const CodedBlock& b, int bits) {
    const uint8_t* const dense = b.p + 2;
    if (has_padding(dense, b.n, bits)) return BAD_PADDING;
    if (is_dense(bits))
        std::memcpy(b.symbols, dense, size_t(dense_bytes(b.n, bits)));
    else
        unpack_dense(dense, b.n, bits, b.symbols);
    return 0;
}

// The streams of a block; how many.
int find_streams(const CodedBlock& b, int bits, HuffmanStream* found) {
    const int64_t m = symbol_bytes(b.n, bits);
    const int streams = streams_of(m);
    const uint8_t* in = b.p + 2 * streams;
    for (int k = 0; k < streams; k++) {
        const int64_t size = read16(b.p + 2 * k), first = m / 4 * k;
        found[k] = {in, size, b.symbols + first, k + 1 < streams ? m / 4 : m - first, false};
        in += size;
    }
    return streams;
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

void decode_blocks(const Entropy& kernels, CodedBlock* blocks, int count, const uint8_t* end, const Quantiser& q, const DecodeTable& table,
                   const Soon& soon) {
    HuffmanStream streams[HUFFMAN_MOST_STREAMS];
    int first[HUFFMAN_MOST_STREAMS + 1] = {};
    for (int k = 0; k < count; k++) {
        CodedBlock& b = blocks[k];
        b.checked = read16(b.p) != RAW_BLOCK;
        b.error = b.checked ? 0 : unpack_raw(b, q.bits);
        first[k + 1] = first[k] + (b.checked ? find_streams(b, q.bits, streams + first[k]) : 0);
    }
    kernels.decode(streams, first[count], end, table, soon);
    for (int k = 0; k < count; k++) {
        CodedBlock& b = blocks[k];
        for (int i = first[k]; i < first[k + 1]; i++)
            if (!streams[i].good) b.error = BAD_STREAM;
        if (b.error == 0 && b.checked && has_padding(b.symbols, b.n, symbol_width(q.bits))) b.error = BAD_PADDING;
    }
}

}  // namespace edgegossip::coding
