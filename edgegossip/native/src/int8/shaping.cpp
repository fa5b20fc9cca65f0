#include "int8/shaping.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/parallel.hpp"

namespace edgegossip {

namespace {

constexpr int64_t TOGETHER = 1 << 15;  // values from which on threads share the work

int threads_for(int64_t values, int threads) { return values >= TOGETHER ? threads : 1; }

void slice_gradient(const SliceShape& s, const float* g, int64_t pitch, float* dx) {
    std::fill_n(dx, s.in_size(), 0.0f);
    for (int64_t y = 0; y < s.rows.count; y++)
        for (int64_t x = 0; x < s.columns.count; x++, g += pitch) {
            const int64_t row = s.rows.first + y * s.rows.step, column = s.columns.first + x * s.columns.step;
            float* const to = dx + (row * s.width + column) * s.channels + s.taken.first;
            if (s.taken.step == 1)
                std::copy_n(g, s.taken.count, to);
            else
                for (int64_t c = 0; c < s.taken.count; c++) to[c * s.taken.step] = g[c];
        }
}

}  // namespace

void slice_map(const SliceShape& s, const int8_t* q, int8_t* out) {
    for (int64_t y = 0; y < s.rows.count; y++)
        for (int64_t x = 0; x < s.columns.count; x++) {
            const int64_t row = s.rows.first + y * s.rows.step, column = s.columns.first + x * s.columns.step;
            const int8_t* const from = q + (row * s.width + column) * s.channels + s.taken.first;
            if (s.taken.step == 1)
                std::memcpy(out, from, size_t(s.taken.count));
            else
                for (int64_t c = 0; c < s.taken.count; c++) out[c] = from[c * s.taken.step];
            out += s.taken.count;
        }
}

void flatten_map(const int8_t* q, int64_t pixels, int64_t channels, int8_t* out) {
    for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < pixels; k++) *out++ = q[k * channels + c];
}

void relu_map(const int8_t* q, int64_t size, int32_t zero, int8_t* out) {
    const int8_t least = int8_t(zero);
    for (int64_t k = 0; k < size; k++) out[k] = std::max(q[k], least);
}

void slice_maps(const SliceShape& s, int64_t batch, const int8_t* q, int8_t* out, int threads) {
    parallel_for(batch, threads_for(batch * s.out_size(), threads), [&](int64_t n) { slice_map(s, q + n * s.in_size(), out + n * s.out_size()); });
}

void slice_backward(const SliceShape& s, int64_t batch, const float* g, int64_t pitch, float* dx, int threads) {
    const int64_t pixels = s.rows.count * s.columns.count;
    parallel_for(batch, threads_for(batch * s.in_size(), threads),
                 [&](int64_t n) { slice_gradient(s, g + n * pixels * pitch, pitch, dx + n * s.in_size()); });
}

void relu_maps(const int8_t* q, const int32_t* zero, int64_t batch, int64_t size, int8_t* out, int threads) {
    parallel_for(batch, threads_for(batch * size, threads), [&](int64_t n) { relu_map(q + n * size, size, zero[n], out + n * size); });
}

void relu_backward(const int8_t* q, const int32_t* zero, int64_t batch, int64_t size, const float* g, float* dx, int threads) {
    parallel_for(batch, threads_for(batch * size, threads), [&](int64_t n) {
        const int32_t least = zero[n];
        for (int64_t k = n * size; k < (n + 1) * size; k++) {
            const float value = g[k];  // loaded in either case, so that compilers need no branch
            dx[k] = q[k] > least ? value : 0.0f;
        }
    });
}

namespace {

constexpr int64_t COPIED_TOGETHER = 16;  // a copy whose size is known costs no call

void copy_pixel(const int8_t* from, int64_t channels, int8_t* to) {
    int64_t c = 0;
    for (; c + COPIED_TOGETHER <= channels; c += COPIED_TOGETHER) std::memcpy(to + c, from + c, COPIED_TOGETHER);
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
