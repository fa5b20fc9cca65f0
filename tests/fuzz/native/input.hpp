// One input of the fuzzer, taken apart: a few bytes that choose decoder, model and how to decode, and the body.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/cpu.hpp"

namespace edgegossip::fuzz {

// corpus.py writes these.
constexpr size_t HEAD_BYTES = 12;
constexpr int64_t MAX_TENSORS = 4, LONG = 66000;  // beyond a block of 65536

struct Input {
    int decoder;
    const Kernels* kernels;
    bool accumulate;
    int threads;
    uint8_t options[4];            // the decoder's
    std::vector<int64_t> offsets;  // of up to MAX_TENSORS tensors
    std::unique_ptr<uint8_t[]> body;  // exactly as large as it is, so that a byte too far is seen
    int64_t body_bytes;

    int64_t size() const { return offsets.back(); }
    int64_t tensors() const { return int64_t(offsets.size()) - 1; }
    int64_t tensor(int64_t k) const { return offsets[size_t(k) + 1] - offsets[size_t(k)]; }
};

// bytes: decoder; isa | accumulate << 1 | (threads - 1) << 2 | long << 4; 4 options; uint16 size of tensors a and b; uint8 c, d.
inline Input take_apart(const uint8_t* data, size_t size) {
    Input in;
    in.decoder = data[0];
    in.kernels = (data[1] & 1) != 0 ? best_isa()->kernels : compiled_isas().front().kernels;
    in.accumulate = (data[1] & 2) != 0;
    in.threads = 1 + (data[1] >> 2 & 3);
    std::memcpy(in.options, data + 2, 4);
    uint16_t a, b;
    std::memcpy(&a, data + 6, 2);
    std::memcpy(&b, data + 8, 2);
    const int64_t sizes[MAX_TENSORS] = {int64_t(a % 2048) + ((data[1] & 16) != 0 ? LONG : 0), b % 2048, data[10], data[11]};
    in.offsets = {0};
    for (const int64_t n : sizes) in.offsets.push_back(in.offsets.back() + n);
    in.body_bytes = int64_t(size - HEAD_BYTES);
    in.body.reset(new uint8_t[size_t(in.body_bytes)]);
    std::memcpy(in.body.get(), data + HEAD_BYTES, size_t(in.body_bytes));
    return in;
}

// What must hold afterwards: values finite where they were written, a refused sum untouched.
class Target {
public:
    explicit Target(const Input& in) : n_(in.size()), accumulate_(in.accumulate), values_(new float[size_t(n_)]) {
        for (int64_t i = 0; i < n_; i++) values_[size_t(i)] = START;
    }
    float* data() { return values_.get(); }

    // A sum gets weight 0, so that any finite values leave it as it is.
    static constexpr float WEIGHT = 0.0f;

    void check(bool accepted, const char* decoder) const {
        for (int64_t i = 0; i < n_; i++) {
            const float v = values_[size_t(i)];
            if (accumulate_ ? v == START : !accepted || std::isfinite(v)) continue;
            std::fprintf(stderr, "%s: value %lld is %g, accepted %d, accumulate %d\n", decoder, static_cast<long long>(i), double(v),
                         int(accepted), int(accumulate_));
            std::abort();
        }
    }

private:
    static constexpr float START = 3.0f;
    int64_t n_;
    bool accumulate_;
    std::unique_ptr<float[]> values_;
};

}  // namespace edgegossip::fuzz
