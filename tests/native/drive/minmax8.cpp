#include "driver.hpp"

namespace {

void run(const edgegossip::Isa& isa) {
    const drive::Tensors t = drive::make_tensors();
    std::vector<uint8_t> body(8 * size_t(t.count()) + t.x.size());
    std::vector<float> out(t.x.size()), sum(t.x.size(), 0.25f);
    const edgegossip::MinMax8& kernels = isa.kernels->minmax8;
    const int64_t codes[4] = {
        isa.kernels->general.first_nonfinite(t.x.data(), t.offsets.data(), t.count()),
        kernels.encode(t.x.data(), t.offsets.data(), t.count(), body.data()),
        kernels.decode(body.data(), t.offsets.data(), t.count(), out.data(), false, 1.0f),
        kernels.decode(body.data(), t.offsets.data(), t.count(), sum.data(), true, 0.3f),
    };
    drive::Hash encoded, decoded, results;
    results.add(codes, sizeof codes);
    encoded.add(body.data(), body.size());
    decoded.add(out.data(), 4 * out.size());
    decoded.add(sum.data(), 4 * sum.size());
    drive::report(isa, "minmax8_results", results);
    drive::report(isa, "minmax8_encode", encoded);
    drive::report(isa, "minmax8_decode", decoded);
}

const drive::Part part(run);

}  // namespace
