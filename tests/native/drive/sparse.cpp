#include <algorithm>

#include "codec/select.hpp"
#include "codec/sparse.hpp"
#include "driver.hpp"

namespace {

using namespace edgegossip;

// Every share that takes another path: one value, gaps, a bitmap, all values.
std::vector<int64_t> counts_of(const Model& model, int share) {
    std::vector<int64_t> counts;
    for (int64_t k = 0; k < model.tensors; k++) counts.push_back(std::min(model.size(k), 1 + model.size(k) * share / 100));
    return counts;
}

struct Hashes {
    drive::Hash topk, randk, decoded;
};

void round_trip(const Isa& isa, const drive::Tensors& t, int share, int32_t form, Hashes* hashes) {
    const Model model{t.offsets.data(), t.count()};
    const std::vector<int64_t> counts = counts_of(model, share);
    std::vector<uint8_t> body(size_t(sparse_capacity(model, counts.data(), form)));
    std::vector<float> out(t.x.size(), 0.25f), zero = t.x, rest = t.x;
    int64_t bytes = topk_encode(*isa.kernels, t.x.data(), model, counts.data(), form, 1, zero.data(), rest.data(), body.data());
    hashes->topk.add(body.data(), size_t(bytes));
    hashes->topk.add(zero.data(), 4 * zero.size());
    hashes->topk.add(rest.data(), 4 * rest.size());
    Verdict verdict = topk_decode(*isa.kernels, body.data(), bytes, model, out.data(), true, 0.3f);
    hashes->decoded.add(&verdict.tensor, sizeof verdict.tensor);
    hashes->decoded.add(out.data(), 4 * out.size());
    bytes = randk_encode(*isa.kernels, t.x.data(), model, counts.data(), form, true, 0x0123456789ABCDEFull, 1, body.data());
    hashes->randk.add(body.data(), size_t(bytes));
    verdict = randk_decode(*isa.kernels, body.data(), bytes, model, out.data(), false, 1.0f, 1);
    hashes->decoded.add(&verdict.tensor, sizeof verdict.tensor);
    hashes->decoded.add(out.data(), 4 * out.size());
}

void run(const Isa& isa) {
    drive::Tensors t = drive::make_tensors();
    Hashes hashes;
    for (const int share : {0, 5, 60, 100})
        for (const int32_t form : {VALUES_FP32, VALUES_FP16, VALUES_BF16}) round_trip(isa, t, share, form, &hashes);
    t.offsets = {0, t.offsets.back()};  // one tensor: large enough for a sample, candidates and histograms
    for (const int share : {0, 1, 20}) round_trip(isa, t, share, VALUES_FP32, &hashes);
    drive::report(isa, "topk_encode", hashes.topk);
    drive::report(isa, "randk_encode", hashes.randk);
    drive::report(isa, "sparse_decode", hashes.decoded);

    drive::Hash momentum;
    const double squares = isa.kernels->sparse.sum_of_squares(t.x.data(), int64_t(t.x.size()));
    std::vector<float> u(t.x.size()), v(t.x.size());
    isa.kernels->sparse.accumulate(t.x.data(), t.x.data(), t.x.data(), int64_t(t.x.size()), 0.9f, 0.3f, u.data(), v.data());
    momentum.add(&squares, sizeof squares);
    momentum.add(u.data(), 4 * u.size());
    momentum.add(v.data(), 4 * v.size());
    drive::report(isa, "momentum", momentum);
}

const drive::Part part(run);

}  // namespace
