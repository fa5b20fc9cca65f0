#include "int8_pad.hpp"

#include <cstring>

#include "../parallel.hpp"

namespace edgegossip {

namespace {

constexpr int64_t TOGETHER = 16;  // a copy whose size is known costs no call

void copy_pixel(const int8_t* from, int64_t channels, int8_t* to) {
    int64_t c = 0;
    for (; c + TOGETHER <= channels; c += TOGETHER) std::memcpy(to + c, from + c, TOGETHER);
    for (; c < channels; c++) to[c] = from[c];
}

void copy_row(const PadShape& s, const int8_t* from, int8_t* to) {
    if (s.out_channels() == s.channels) {
        std::memcpy(to, from, size_t(s.width * s.channels));
        return;
    }
    for (int64_t x = 0; x < s.width; x++) copy_pixel(from + x * s.channels, s.channels, to + x * s.out_channels());
}

}  // namespace

void pad_maps(const PadShape& s, const int8_t* q, const int32_t* zero, int8_t* out, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        int8_t* const to = out + n * s.out_size();
        std::memset(to, zero[n], size_t(s.out_size()));
        for (int64_t y = 0; y < s.height; y++)
            copy_row(s, q + n * s.in_size() + y * s.width * s.channels, to + (s.above + y) * s.out_row() + s.before * s.out_channels() + s.first);
    });
}

}  // namespace edgegossip
