#include "int8_pool.hpp"

#include <algorithm>
#include <vector>

#include "../parallel.hpp"

namespace edgegossip {

namespace {

// The part of a window that lies inside the map.
struct Window {
    int64_t top, bottom, left, right;  // half open
    int64_t first_row, first_column;   // may lie outside

    Window(const PoolShape& s, int64_t y, int64_t x) : first_row(y * s.stride_h - s.pad_h), first_column(x * s.stride_w - s.pad_w) {
        top = std::max<int64_t>(first_row, 0);
        left = std::max<int64_t>(first_column, 0);
        bottom = std::max(top, std::min(first_row + s.kernel_h, s.height));
        right = std::max(left, std::min(first_column + s.kernel_w, s.width));
    }

    // As torch counts: padding counts, but not what ceil_mode adds beyond it.
    int64_t divisor(const PoolShape& s, bool count_padding) const {
        if (!count_padding) return std::max<int64_t>((bottom - top) * (right - left), 1);
        const int64_t rows = std::min(first_row + s.kernel_h, s.height + s.pad_h) - first_row;
        const int64_t columns = std::min(first_column + s.kernel_w, s.width + s.pad_w) - first_column;
        return std::max<int64_t>(rows * columns, 1);
    }
};

// task(window, index of the first channel of the output) for every window of a sample.
template <class Task>
void for_windows(const PoolShape& s, const Task& task) {
    for (int64_t y = 0; y < s.out_height; y++)
        for (int64_t x = 0; x < s.out_width; x++) task(Window(s, y, x), (y * s.out_width + x) * s.channels);
}

// task(index of the first channel of an input inside the window, its place in the window).
template <class Task>
void for_taps(const PoolShape& s, const Window& w, const Task& task) {
    for (int64_t row = w.top; row < w.bottom; row++)
        for (int64_t column = w.left; column < w.right; column++)
            task((row * s.width + column) * s.channels, (row - w.first_row) * s.kernel_w + column - w.first_column);
}

}  // namespace

void max_pool(const PoolShape& s, const int8_t* x, int8_t* q, uint8_t* tap, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        const int8_t* const map = x + n * s.in_size();
        for_windows(s, [&](const Window& w, int64_t at) {
            int8_t* const most = q + n * s.out_size() + at;
            uint8_t* const place = tap + n * s.out_size() + at;
            bool first = true;
            for_taps(s, w, [&](int64_t from, int64_t k) {
                const int8_t* const value = map + from;
                if (first) {
                    std::copy_n(value, s.channels, most);
                    std::fill_n(place, s.channels, uint8_t(k));
                    first = false;
                    return;
                }
                for (int64_t c = 0; c < s.channels; c++) {
                    const bool larger = value[c] > most[c];
                    most[c] = larger ? value[c] : most[c];
                    place[c] = larger ? uint8_t(k) : place[c];
                }
            });
        });
    });
}

void max_pool_backward(const PoolShape& s, const uint8_t* tap, const float* g, float* out, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        float* const map = out + n * s.in_size();
        std::fill_n(map, s.in_size(), 0.0f);
        for_windows(s, [&](const Window& w, int64_t at) {
            const uint8_t* const place = tap + n * s.out_size() + at;
            const float* const grad = g + n * s.out_size() + at;
            for_taps(s, w, [&](int64_t to, int64_t k) {
                for (int64_t c = 0; c < s.channels; c++) map[to + c] += place[c] == k ? grad[c] : 0.0f;
            });
        });
    });
}

void average_pool(const PoolShape& s, const Maps& x, bool count_padding, float* out, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        const int8_t* const map = x.q + n * s.in_size();
        std::vector<int32_t> sums(static_cast<size_t>(s.channels));
        for_windows(s, [&](const Window& w, int64_t at) {
            std::fill(sums.begin(), sums.end(), 0);
            for_taps(s, w, [&](int64_t from, int64_t) {
                for (int64_t c = 0; c < s.channels; c++) sums[size_t(c)] += map[from + c];
            });
            const int32_t zeros = int32_t((w.bottom - w.top) * (w.right - w.left)) * x.zero[n];
            const float factor = x.scale[n] / float(w.divisor(s, count_padding));
            for (int64_t c = 0; c < s.channels; c++) out[n * s.out_size() + at + c] = float(sums[size_t(c)] - zeros) * factor;
        });
    });
}

void average_pool_backward(const PoolShape& s, const float* g, bool count_padding, float* out, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        float* const map = out + n * s.in_size();
        std::fill_n(map, s.in_size(), 0.0f);
        for_windows(s, [&](const Window& w, int64_t at) {
            const float factor = 1.0f / float(w.divisor(s, count_padding));
            const float* const grad = g + n * s.out_size() + at;
            for_taps(s, w, [&](int64_t to, int64_t) {
                for (int64_t c = 0; c < s.channels; c++) map[to + c] += grad[c] * factor;
            });
        });
    });
}

}  // namespace edgegossip
