#include "codec/eden.hpp"

#include <atomic>
#include <cstring>

#include "runtime/parallel.hpp"

namespace edgegossip {
namespace {

constexpr int64_t PIECE = 64 * EDEN_LARGEST;  // values of a task

int64_t padded(int64_t n) { return (n + EDEN_LEAST - 1) / EDEN_LEAST * EDEN_LEAST; }
int64_t block_bytes(int64_t size, int32_t bits) { return 4 + size / 8 * bits; }

// The largest block that fits into what is left, a multiple of 32 above 0.
int64_t size_of_next(int64_t left) {
    return left >= EDEN_LARGEST ? EDEN_LARGEST : int64_t(1) << (63 - __builtin_clzll(uint64_t(left)));
}

// A stretch of a tensor that begins at a block.
struct Piece {
    int64_t tensor, first, last;  // positions in the tensor
    int64_t at;                   // in the body
};

std::vector<Piece> pieces_of(const std::vector<int64_t>& offsets, int32_t bits) {
    std::vector<Piece> pieces;
    int64_t at = 0;
    for (size_t k = 0; k + 1 < offsets.size(); k++) {
        const int64_t n = offsets[k + 1] - offsets[k];
        for (int64_t first = 0; first < n; first += PIECE)
            pieces.push_back({int64_t(k), first, n - first < PIECE ? n : first + PIECE,
                              at + first / EDEN_LARGEST * block_bytes(EDEN_LARGEST, bits)});
        at += eden_bytes(n, bits);
    }
    return pieces;
}

// each(block, first byte) until it says no; whether it never did.
template <class Each>
bool every_block(const Piece& piece, int32_t bits, uint64_t key, const Each& each) {
    const int64_t end = padded(piece.last);
    int64_t at = piece.at;
    for (int64_t position = piece.first; position < end;) {
        const int64_t size = size_of_next(end - position), left = piece.last - position;
        if (!each(EdenBlock{size, left < size ? left : size, position, bits, key}, at)) return false;
        position += size;
        at += block_bytes(size, bits);
    }
    return true;
}

}  // namespace

int64_t eden_bytes(int64_t n, int32_t bits) {
    const int64_t all = padded(n), rest = all % EDEN_LARGEST;
    return all / 8 * bits + 4 * (all / EDEN_LARGEST + __builtin_popcountll(uint64_t(rest)));
}

int64_t eden_encode(const Kernels& kernels, const float* x, const std::vector<int64_t>& offsets, const std::vector<uint64_t>& keys,
                    int32_t bits, uint8_t* body, int threads) {
    const std::vector<Piece> pieces = pieces_of(offsets, bits);
    std::atomic<bool> good{true};
    parallel_for(int64_t(pieces.size()), threads, [&](int64_t p) {
        const Piece& piece = pieces[size_t(p)];
        const float* tensor = x + offsets[size_t(piece.tensor)];
        if (good && !every_block(piece, bits, keys[size_t(piece.tensor)], [&](const EdenBlock& block, int64_t at) {
                return kernels.eden.encode(tensor + block.position, block, body + at);
            }))
            good = false;
    });
    return good ? -1 : kernels.general.first_nonfinite(x, offsets.data(), int64_t(offsets.size()) - 1);
}

int64_t eden_fault(const uint8_t* body, const std::vector<int64_t>& offsets, int32_t bits) {
    constexpr uint32_t INFINITE = 0x7f800000;  // what is negative is beyond it, as a number without sign
    int64_t at = 0;
    for (size_t k = 0; k + 1 < offsets.size(); k++) {
        const Piece whole{int64_t(k), 0, offsets[k + 1] - offsets[k], at};
        const bool sound = every_block(whole, bits, 0, [&](const EdenBlock&, int64_t place) {
            uint32_t scale;
            std::memcpy(&scale, body + place, sizeof scale);
            return scale < INFINITE;
        });
        if (!sound) return int64_t(k);
        at += eden_bytes(whole.last, bits);
    }
    return -1;
}

void eden_decode(const Kernels& kernels, const uint8_t* body, const std::vector<int64_t>& offsets, const std::vector<uint64_t>& keys,
                 int32_t bits, float* out, bool accumulate, float weight, int threads) {
    const std::vector<Piece> pieces = pieces_of(offsets, bits);
    parallel_for(int64_t(pieces.size()), threads, [&](int64_t p) {
        const Piece& piece = pieces[size_t(p)];
        float* tensor = out + offsets[size_t(piece.tensor)];
        every_block(piece, bits, keys[size_t(piece.tensor)], [&](const EdenBlock& block, int64_t at) {
            kernels.eden.decode(body + at, block, tensor + block.position, accumulate, weight);
            return true;
        });
    });
}

}  // namespace edgegossip
