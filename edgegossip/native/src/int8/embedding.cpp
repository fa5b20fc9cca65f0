#include "int8/embedding.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime/parallel.hpp"
#include "int8/conv.hpp"
#include "int8/work.hpp"

namespace edgegossip {

namespace {

constexpr int64_t PARTS = 16;  // of a table, by the last bits of its rows' numbers; each adds up its own rows

// A sample's gradient as integers of 16 bits, and its scale; zeros and NaN where it is not finite.
float integers_of(const Int8& kernels, const float* g, int64_t n, int64_t size, uint64_t key, bool wide, int16_t* codes) {
    const GradientScales scales = gradient_scales(kernels.magnitude(g, size));
    if (!scales.finite()) {
        std::fill_n(codes, size, int16_t(0));
    } else if (wide) {
        kernels.round16(g, size, 1.0f / scales.wide, codes);
    } else {
        ConvWork& work = conv_work();
        work.g8.need(size);
        kernels.round8(g, size, 1.0f / scales.narrow, key, n * ((size + 1) & ~int64_t(1)), work.g8.data());
        std::copy_n(work.g8.data(), size, codes);
    }
    return wide ? scales.wide : scales.narrow;
}

// Places of a sample in the order of their ids; equal ids in the order of the places.
void sort_places(const int64_t* ids, int64_t length, int32_t* places) {
    std::iota(places, places + length, 0);
    if (std::is_sorted(ids, ids + length)) return;
    std::sort(places, places + length, [&](int32_t a, int32_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
}

}  // namespace

void embedding_forward(const Int8& kernels, const EmbeddingShape& s, const int64_t* ids, const float* table, int8_t* q, float* scale,
                       int32_t* zero, int threads) {
    parallel_for(s.batch, threads, [&](int64_t n) {
        coding::Scratch<float>& values = conv_work().values;
        values.need(s.size());
        for (int64_t k = 0; k < s.length; k++)
            std::memcpy(values.data() + k * s.width, table + ids[n * s.length + k] * s.width, size_t(s.width) * sizeof(float));
        const Affine to = kernels.quantise(values.data(), s.size(), q + n * s.size());
        scale[n] = to.scale;
        zero[n] = to.zero;
    });
}

void embedding_backward(const Int8& kernels, const EmbeddingShape& s, const int64_t* ids, const float* g, uint64_t key, bool wide,
                        int64_t padding, float* dw, int threads) {
    std::vector<int16_t> codes(size_t(s.batch * s.size()));
    std::vector<int32_t> places(size_t(s.batch * s.length));
    std::vector<float> scale(static_cast<size_t>(s.batch));
    parallel_for(s.batch, threads, [&](int64_t n) {
        scale[size_t(n)] = integers_of(kernels, g + n * s.size(), n, s.size(), key, wide, codes.data() + n * s.size());
        sort_places(ids + n * s.length, s.length, places.data() + n * s.length);
    });
    std::fill_n(dw, s.rows * s.width, 0.0f);
    parallel_for(PARTS, threads, [&](int64_t part) {
        std::vector<int64_t> sums(static_cast<size_t>(s.width));  // 16-bit values: no length of a sample overflows them
        for (int64_t n = 0; n < s.batch; n++) {
            const int64_t* const named = ids + n * s.length;
            const int32_t *at = places.data() + n * s.length, *const last = at + s.length;
            while (at < last) {
                const int64_t row = named[*at];
                const int32_t* end = at + 1;
                while (end < last && named[*end] == row) end++;
                if (row % PARTS == part && row != padding) {
                    std::fill(sums.begin(), sums.end(), 0);
                    for (; at < end; at++) {
                        const int16_t* const from = codes.data() + n * s.size() + *at * s.width;
                        for (int64_t c = 0; c < s.width; c++) sums[size_t(c)] += from[c];
                    }
                    for (int64_t c = 0; c < s.width; c++) dw[row * s.width + c] += scale[size_t(n)] * float(sums[size_t(c)]);
                }
                at = end;
            }
        }
    });
}

}  // namespace edgegossip
