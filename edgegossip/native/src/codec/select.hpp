// The k largest magnitudes of a vector, exactly; and, by the same means, k random positions.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/kernels.hpp"

namespace edgegossip {

// What is ranked: the magnitudes of float32[n], or, without values, the n numbers that the key draws, their upper 31 bits. Those are
// independent and uniform, so that any k positions are as likely as any others to hold the k largest of them.
struct Source {
    const Kernels* kernels;
    const float* values;  // or nullptr
    uint64_t key;
    int64_t n;
};

// Takes the selected positions in increasing order, some at a time, with the bits of what stands there.
using Sink = std::function<void(const uint32_t* index, const uint32_t* bits, int64_t count)>;

// Gives the k (1 to n) largest to the sink; of equal ones those that come first. False, and nothing given, when the values
// are not all finite. The result depends on the source alone; temporary memory is at most 2 n bytes and 1 MiB.
bool select_largest(const Source& source, int64_t k, int threads, const Sink& sink);

}  // namespace edgegossip
