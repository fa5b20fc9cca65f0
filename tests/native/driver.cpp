// Runs every kernel of every instruction set of this build on fixed pseudo-random tensors and prints one hash a kernel:
//     <instruction set> <kernel> <FNV-1a of all results>
// Compiled for several architectures, so that their lines can be compared.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cpu.hpp"

using namespace edgegossip;

namespace {

uint64_t state = 88172645463325252ull;

uint64_t next() {  // xorshift64
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

struct Hash {
    uint64_t value = 1469598103934665603ull;
    void add(const void* data, size_t size) {
        for (size_t i = 0; i < size; i++) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
    }
};

// Any finite bit pattern, or values spread narrowly around an offset.
float value_of(uint64_t kind, float offset, float width) {
    uint32_t bits = uint32_t(next());
    if (kind % 4 == 0) {
        if ((bits & 0x7f800000u) == 0x7f800000u) bits &= ~0x00800000u;
        float v;
        std::memcpy(&v, &bits, 4);
        return v;
    }
    return offset + width * (float(bits >> 8) / 16777216.0f - 0.5f);
}

}  // namespace

int main() {
    const float offsets_of[] = {0.0f, 1.0f, -1e4f, 1e8f, 3e38f}, widths[] = {1e-42f, 1e-6f, 1.0f, 1e5f, 1e37f};
    std::vector<float> x;
    std::vector<int64_t> offsets = {0};
    for (int tensor = 0; tensor < 600; tensor++) {
        const uint64_t kind = next(), length = next() % 700;
        const float offset = offsets_of[next() % 5], width = widths[next() % 5];
        for (uint64_t i = 0; i < length; i++) x.push_back(value_of(kind, offset, width));
        offsets.push_back(int64_t(x.size()));
    }
    const int64_t tensors = int64_t(offsets.size()) - 1;
    for (const Isa& isa : available_isas()) {
        std::vector<uint8_t> body(8 * size_t(tensors) + x.size());
        std::vector<float> out(x.size()), sum(x.size(), 0.25f);
        int64_t codes[4] = {
            isa.kernels->first_nonfinite(x.data(), offsets.data(), tensors),
            isa.kernels->minmax8_encode(x.data(), offsets.data(), tensors, body.data()),
            isa.kernels->minmax8_decode(body.data(), offsets.data(), tensors, out.data(), false, 1.0f),
            isa.kernels->minmax8_decode(body.data(), offsets.data(), tensors, sum.data(), true, 0.3f),
        };
        Hash encoded, decoded, finite;
        finite.add(codes, sizeof codes);
        encoded.add(body.data(), body.size());
        decoded.add(out.data(), 4 * out.size());
        decoded.add(sum.data(), 4 * sum.size());
        std::printf("%s results %016llx\n", isa.name, (unsigned long long)finite.value);
        std::printf("%s minmax8_encode %016llx\n", isa.name, (unsigned long long)encoded.value);
        std::printf("%s minmax8_decode %016llx\n", isa.name, (unsigned long long)decoded.value);
    }
}
