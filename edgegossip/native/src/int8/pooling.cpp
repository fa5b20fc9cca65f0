#include "int8/pooling.hpp"

#include <algorithm>
#include <vector>

#include "runtime/parallel.hpp"

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

void max_pool(const Int8& kernels, const PoolShape& s, Tie tie, const int8_t* x, int8_t* q, uint8_t* tap, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        std::vector<const int8_t*> from;
        std::vector<uint8_t> places;
        for_windows(s, [&](const Window& w, int64_t at) {
            from.clear();
            places.clear();
            for_taps(s, w, [&](int64_t first, int64_t k) {
                from.push_back(x + n * s.in_size() + first);
                places.push_back(uint8_t(k));
            });
            if (tie == Tie::LAST) {  // a kernel names the first
                std::reverse(from.begin(), from.end());
                std::reverse(places.begin(), places.end());
            }
            kernels.largest(from.data(), places.data(), int64_t(from.size()), s.channels, q + n * s.out_size() + at,
                            tap + n * s.out_size() + at);
        });
    });
}

bool taps_inside(const PoolShape& s, const uint8_t* tap) {
    const uint8_t most = *std::max_element(tap, tap + s.batch * s.out_size());
    const bool whole = s.pad_h == 0 && s.pad_w == 0 && (s.out_height - 1) * s.stride_h + s.kernel_h <= s.height &&
                       (s.out_width - 1) * s.stride_w + s.kernel_w <= s.width;
    if (whole || most >= s.kernel_h * s.kernel_w) return most < s.kernel_h * s.kernel_w;
    bool inside = true;
    for (int64_t n = 0; n < s.batch; n++)
        for_windows(s, [&](const Window& w, int64_t at) {
            bool good[256] = {};
            for_taps(s, w, [&](int64_t, int64_t k) { good[k & 255] = true; });
            for (int64_t c = 0; c < s.channels; c++) inside = inside && good[tap[n * s.out_size() + at + c]];
        });
    return inside;
}

void max_pool_backward(const PoolShape& s, const uint8_t* first, const uint8_t* last, const float* g, float* out, int threads) {
    std::vector<int64_t> offsets;  // of a window's places
    for (int64_t k = 0; k < s.kernel_h * s.kernel_w; k++) offsets.push_back((k / s.kernel_w * s.width + k % s.kernel_w) * s.channels);
    parallel_for(s.batch, threads, [&](int64_t n) {
        float* const map = out + n * s.in_size();
        std::fill_n(map, s.in_size(), 0.0f);
        for_windows(s, [&](const Window& w, int64_t at) {
            const uint8_t *const a = first + n * s.out_size() + at, *const b = last + n * s.out_size() + at;
            const float* const grad = g + n * s.out_size() + at;
            const int64_t start = (w.first_row * s.width + w.first_column) * s.channels;
            for (int64_t c = 0; c < s.channels; c++) {
                const float half = grad[c] * 0.5f;
                map[start + offsets[a[c]] + c] += half;
                map[start + offsets[b[c]] + c] += half;
            }
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
