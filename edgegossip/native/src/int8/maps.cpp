#include "int8/maps.hpp"

#include "int8/work.hpp"
#include "runtime/parallel.hpp"

namespace edgegossip {

void quantise_maps(const Int8& kernels, const float* x, int64_t batch, int64_t size, int8_t* q, float* scale, int32_t* zero, int threads) {
    parallel_for(batch, threads, [&](int64_t n) {
        const Affine to = kernels.quantise(x + n * size, size, q + n * size);
        scale[n] = to.scale;
        zero[n] = to.zero;
    });
}

void add_maps(const Int8& kernels, const Maps& a, const Maps& b, int64_t batch, int64_t size, int8_t* q, float* scale, int32_t* zero,
              int threads) {
    parallel_for(batch, threads, [&](int64_t n) {
        static thread_local coding::Scratch<float> values;
        values.need(size);
        const Affine to = kernels.add(a.q + n * size, {a.scale[n], a.zero[n]}, b.q + n * size, {b.scale[n], b.zero[n]}, size,
                                      values.data(), q + n * size);
        scale[n] = to.scale;
        zero[n] = to.zero;
    });
}

}  // namespace edgegossip
