#include "codec/quantiser.hpp"
#include "driver.hpp"

namespace {

using namespace edgegossip;

std::vector<float> geometric() {
    std::vector<float> list(128, 1.0f);
    for (int j = 126; j > 0; j--) list[size_t(j)] = list[size_t(j) + 1] * 0.9f;
    list[0] = 0.0f;
    return list;
}

struct Hashes {
    drive::Hash norms, codes, values;
};

// One tensor with one quantiser: norms, symbols with these and with a scale that clips, and their values.
void tensor(const Quantise& k, const float* x, int64_t n, const Quantiser& q, uint64_t key, Hashes* hashes) {
    const int64_t count = count_of_scales(q.bucket, n);
    std::vector<float> scales(size_t(count) + 1), out(size_t(n) + 1, 0.25f);
    std::vector<uint8_t> symbols(size_t(bytes_of_symbols(q, n)) + 1);
    for (int32_t norm = 0; norm < 3; norm++) {
        bool good = norm == 2 || k.norms(x, n, q.bucket, norm, scales.data());
        if (norm == 2)
            for (float& scale : scales) scale = 1e-3f;
        hashes->norms.add(scales.data(), 4 * size_t(count));
        k.quantise(x, n, &q, key, 0, scales.data(), symbols.data());
        hashes->codes.add(symbols.data(), symbols.size());
        good = good && k.dequantise(symbols.data(), n, {&q, scales.data(), out.data(), false, 1.0f}, false);
        hashes->values.add(out.data(), 4 * size_t(n));
        good = good && k.dequantise(symbols.data(), n, {&q, scales.data(), out.data(), true, 0.3f}, false);
        hashes->values.add(out.data(), 4 * size_t(n));
        if (norm < 2 && q.bucket != 0) {
            good = good && k.quantise_with_norms(x, n, &q, norm, key, 0, scales.data(), symbols.data());
            hashes->codes.add(symbols.data(), symbols.size());
        }
        hashes->values.add(&good, 1);
    }
}

void run(const Isa& isa) {
    const drive::Tensors t = drive::make_tensors();
    const std::vector<float> list = geometric();
    const Quantise& k = isa.kernels->quantise;
    const Quantiser quantisers[] = {
        {UNIFORM, 4, 7, 512, nullptr, 0}, {UNIFORM, 2, 1, 0, nullptr, 0},      {UNIFORM, 8, 127, 64, nullptr, 0},
        {UNIFORM, 12, 2047, 512, nullptr, 0}, {LOG2, 4, 6, 512, nullptr, 0},   {LOG2, 8, 126, 8, nullptr, 0},
        {LEVELS, 8, 0, 512, list.data(), 128}, {FP4, 4, 0, 0, nullptr, 0},     {SIGN, 1, 0, 0, nullptr, 0},
    };
    Hashes hashes;
    for (const Quantiser& q : quantisers) {
        for (int64_t tensor_index = 0; tensor_index < t.count(); tensor_index += 6) {
            const int64_t start = t.offsets[size_t(tensor_index)];
            tensor(k, t.x.data() + start, t.offsets[size_t(tensor_index) + 1] - start, q, uint64_t(start) << 20 | 77, &hashes);
        }
        tensor(k, t.x.data(), int64_t(t.x.size()), q, 0xfedcba9876543210ull, &hashes);
    }
    double moments[4];
    k.moments(t.x.data(), int64_t(t.x.size()), moments);
    hashes.norms.add(moments, sizeof moments);
    std::vector<uint32_t> numbers(1001);
    k.uniform32(0x123456789abcdefull, 12345, 1001, numbers.data());
    hashes.codes.add(numbers.data(), 4 * numbers.size());
    drive::report(isa, "quantise_norms", hashes.norms);
    drive::report(isa, "quantise_codes", hashes.codes);
    drive::report(isa, "quantise_values", hashes.values);
}

const drive::Part part(run);

}  // namespace
