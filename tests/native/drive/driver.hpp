// Runs every kernel of every instruction set of a build on fixed pseudo-random inputs and prints one hash a kernel, so that
// builds for several architectures can be compared. A part is a file PART.cpp here with one static `Part`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/cpu.hpp"

namespace drive {

// FNV-1a.
struct Hash {
    uint64_t value = 1469598103934665603ull;
    void add(const void* data, size_t size) {
        for (size_t i = 0; i < size; i++) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
    }
};

struct Random {
    uint64_t state = 88172645463325252ull;
    uint64_t next() {  // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
};

// Tensors of very different sizes and values: tensor k is x[offsets[k] .. offsets[k + 1]).
struct Tensors {
    std::vector<float> x;
    std::vector<int64_t> offsets;
    int64_t count() const { return int64_t(offsets.size()) - 1; }
};
Tensors make_tensors();

// Prints "<instruction set> <kernel> <hash>".
void report(const edgegossip::Isa& isa, const char* kernel, const Hash& hash);

struct Part {
    explicit Part(void (*run)(const edgegossip::Isa&));
};

}  // namespace drive
