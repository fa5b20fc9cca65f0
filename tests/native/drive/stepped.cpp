#include <algorithm>
#include <cmath>

#include "codec/stepped.hpp"
#include "driver.hpp"

namespace {

using namespace edgegossip;
using namespace edgegossip::coding;

void run(const Isa& isa) {
    const drive::Tensors t = drive::make_tensors();
    std::vector<float> x = t.x;
    float largest = 0;
    for (float& v : x) {
        v = v < -1e6f ? -1e6f : v > 1e6f ? 1e6f : v;  // at most STEPS_MOST steps of the smallest one
        largest = std::max(largest, std::fabs(v));
    }
    const std::vector<int8_t> eighths(size_t(t.count()), int8_t(5));
    std::vector<int64_t> columns;  // eight rows, where a tensor can have them
    for (size_t k = 0; k + 1 < t.offsets.size(); k++) {
        const int64_t size = t.offsets[k + 1] - t.offsets[k];
        columns.push_back(size % 8 == 0 ? size / 8 : 0);
    }
    drive::Hash encoded, decoded, bits, error;
    for (const bool dithered : {true, false})
        for (const float step : {largest / 1e6f, largest / 200, largest / 4})
            for (const int8_t* own : {static_cast<const int8_t*>(nullptr), eighths.data()}) {
                const Stepped s{t.offsets.data(), columns.data(), t.count(), dithered, 0x0123456789ABCDEFull, step, own};
                const std::vector<uint8_t> body = encode_steps(*isa.kernels, x.data(), s);
                encoded.add(body.data(), body.size());
                std::vector<float> out(x.size(), 0.25f);
                const int64_t fault =
                    decode_steps(*isa.kernels, body.data(), int64_t(body.size()), s.offsets, s.columns, s.tensors, dithered, true, 0.3f, out.data());
                decoded.add(&fault, sizeof fault);
                decoded.add(out.data(), 4 * out.size());
                const double many = bits_of_steps(*isa.kernels, x.data(), s);
                bits.add(&many, sizeof many);
                if (dithered) continue;
                const double off = error_of_steps(*isa.kernels, x.data(), s);
                error.add(&off, sizeof off);
            }
    drive::report(isa, "steps_encode", encoded);
    drive::report(isa, "steps_decode", decoded);
    drive::report(isa, "steps_bits", bits);
    drive::report(isa, "steps_error", error);
}

const drive::Part part(run);

}  // namespace
