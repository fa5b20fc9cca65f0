#include "driver.hpp"

namespace {

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
}

const drive::Part part(run);

}  // namespace
