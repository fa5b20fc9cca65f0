#include <cmath>

#include "driver.hpp"

namespace {

// Every number of binary16, and what lies at and beside the middle of every two, where rounding turns; the last is 65520, from
// where on binary16 has infinity.
std::vector<float> around_halves(const edgegossip::FloatForm& fp16) {
    std::vector<uint16_t> codes(0x7c00);
    for (size_t i = 0; i < codes.size(); i++) codes[i] = uint16_t(i);
    std::vector<float> halves(codes.size()), found;
    fp16.decode(reinterpret_cast<const uint8_t*>(codes.data()), int64_t(codes.size()), halves.data(), false, 1.0f);
    for (size_t i = 0; i < halves.size(); i++) {
        const float middle = 0.5f * (halves[i] + (i + 1 < halves.size() ? halves[i + 1] : 65536.0f));
        for (const float v : {halves[i], middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e6f)}) {
            found.push_back(v);
            found.push_back(-v);
        }
    }
    return found;
}

void run_halves(const edgegossip::Isa& isa, const std::vector<float>& x) {
    const edgegossip::FloatForm& fp16 = isa.kernels->half.fp16;
    std::vector<uint8_t> body(2 * x.size());
    std::vector<float> out(x.size());
    drive::Hash hash;
    const bool good = fp16.encode(x.data(), int64_t(x.size()), body.data()) &&
                      fp16.decode(body.data(), int64_t(x.size()), out.data(), false, 1.0f);
    hash.add(&good, sizeof good);
    hash.add(body.data(), body.size());
    hash.add(out.data(), 4 * out.size());
    drive::report(isa, "fp16_all", hash);
}

void run_form(const edgegossip::Isa& isa, const char* name, const edgegossip::FloatForm& form) {
    const drive::Tensors t = drive::make_tensors();
    const int64_t n = int64_t(t.x.size());
    std::vector<uint8_t> body(size_t(form.bytes) * t.x.size());
    std::vector<float> out(t.x.size()), sum(t.x.size(), 0.25f);
    const bool good[4] = {
        form.encode(t.x.data(), n, body.data()),
        form.finite(body.data(), n),
        form.decode(body.data(), n, out.data(), false, 1.0f),
        form.decode(body.data(), n, sum.data(), true, 0.3f),
    };
    drive::Hash hash;
    hash.add(good, sizeof good);
    hash.add(body.data(), body.size());
    hash.add(out.data(), 4 * out.size());
    hash.add(sum.data(), 4 * sum.size());
    drive::report(isa, name, hash);
}

void run(const edgegossip::Isa& isa) {
    run_form(isa, "fp32", isa.kernels->half.fp32);
    run_form(isa, "fp16", isa.kernels->half.fp16);
    run_form(isa, "bf16", isa.kernels->half.bf16);
    const std::vector<float> x = around_halves(isa.kernels->half.fp16);
    run_halves(isa, x);
#if defined(__aarch64__)  // Arm's conversions give the same where a thread flushes denormals of float32: bit 24 of its register
    uint64_t before;
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" : : "r"(before | 1u << 24));
    run_halves(isa, x);
    asm volatile("msr fpcr, %0" : : "r"(before));
#endif
}

const drive::Part part(run);

}  // namespace
