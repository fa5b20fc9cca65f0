// What the parts of integer training share.
#pragma once

#include <cmath>

#include "int8/norm.hpp"
#include "driver.hpp"

namespace drive {

using namespace edgegossip;

inline float uniform(Random& random) { return float(uint32_t(random.next()) >> 8) / 8388608.0f - 1.0f; }

inline std::vector<float> floats(Random& random, int64_t n, float width) {
    std::vector<float> made(static_cast<size_t>(n));
    for (float& v : made) v = uniform(random) * width;
    return made;
}

// NaNs have many bit patterns.
inline void add(Hash& hash, std::vector<float>& values) {
    for (float& v : values)
        if (std::isnan(v)) v = -1.0f;
    hash.add(values.data(), 4 * values.size());
}

struct Batch {
    std::vector<int8_t> q;
    std::vector<float> scale;
    std::vector<int32_t> zero;

    Batch(int64_t batch, int64_t size) : q(size_t(batch * size)), scale(size_t(batch)), zero(size_t(batch)) {}
    Maps view() const { return {q.data(), scale.data(), zero.data()}; }
    void add_to(Hash& hash) {
        hash.add(q.data(), q.size());
        hash.add(zero.data(), 4 * zero.size());
        drive::add(hash, scale);
    }
};

inline Batch quantised(const Int8& kernels, Random& random, int64_t batch, int64_t size, float width) {
    Batch made(batch, size);
    const std::vector<float> x = floats(random, batch * size, width);
    quantise_maps(kernels, x.data(), batch, size, made.q.data(), made.scale.data(), made.zero.data(), 1);
    return made;
}

}  // namespace drive
