#include "codec/eden.hpp"

#include "driver.hpp"

namespace {

void run(const edgegossip::Isa& isa) {
    const drive::Tensors t = drive::make_tensors();
    std::vector<int64_t> offsets = t.offsets;
    std::vector<float> x = t.x;
    for (float& v : x)
        if (!(v - v == 0.0f)) v = 1.0f;
    for (int64_t n : {8191, 4096}) {  // whole blocks, and one of every smaller size
        for (int64_t i = 0; i < n; i++) x.push_back(x[size_t(i)] * 1e-30f + float(i % 37 - 18));
        offsets.push_back(int64_t(x.size()));
    }
    std::vector<uint64_t> keys(offsets.size() - 1);
    drive::Random random;
    for (uint64_t& key : keys) key = random.next();
    drive::Hash encoded, decoded;
    for (int32_t bits = 1; bits <= 4; bits++) {
        int64_t size = 0;
        for (size_t k = 0; k < keys.size(); k++) size += edgegossip::eden_bytes(offsets[k + 1] - offsets[k], bits);
        std::vector<uint8_t> body(size_t(size), 0);
        std::vector<float> out(x.size()), sum(x.size(), 0.25f);
        const int64_t codes[2] = {edgegossip::eden_encode(*isa.kernels, x.data(), offsets, keys, bits, body.data(), 1),
                                  edgegossip::eden_fault(body.data(), offsets, bits)};
        edgegossip::eden_decode(*isa.kernels, body.data(), offsets, keys, bits, out.data(), false, 1.0f, 1);
        edgegossip::eden_decode(*isa.kernels, body.data(), offsets, keys, bits, sum.data(), true, 0.3f, 1);
        encoded.add(codes, sizeof codes);
        encoded.add(body.data(), body.size());
        decoded.add(out.data(), 4 * out.size());
        decoded.add(sum.data(), 4 * sum.size());
    }
    drive::report(isa, "eden_encode", encoded);
    drive::report(isa, "eden_decode", decoded);
}

const drive::Part part(run);

}  // namespace
