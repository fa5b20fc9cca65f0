// libFuzzer target: every native decoder, without Python, as the Python layer calls it. run.py builds it with sanitizers.

#include "core/sparse.hpp"
#include "float_env.hpp"
#include "input.hpp"

namespace edgegossip::fuzz {
namespace {

void fuzz_floats(const Input& in, const FloatForm& form, const char* name) {
    if (in.body_bytes != form.bytes * in.size()) return;  // checked in Python
    Target target(in);
    if (in.accumulate && !form.finite(in.body.get(), in.size())) return target.check(false, name);
    target.check(form.decode(in.body.get(), in.size(), target.data(), in.accumulate, Target::WEIGHT), name);
}

void fuzz_minmax8(const Input& in) {
    if (in.body_bytes != 8 * in.tensors() + in.size()) return;
    Target target(in);
    const int64_t bad = in.kernels->minmax8.decode(in.body.get(), in.offsets.data(), in.tensors(), target.data(), in.accumulate,
                                                   Target::WEIGHT);
    target.check(bad < 0, "minmax8");
}

void fuzz_sparse(const Input& in, bool drawn) {
    Target target(in);
    const Model model{in.offsets.data(), in.tensors()};
    const Verdict verdict = drawn ? randk_decode(*in.kernels, in.body.get(), in.body_bytes, model, target.data(), in.accumulate,
                                                 Target::WEIGHT, in.threads)
                                  : topk_decode(*in.kernels, in.body.get(), in.body_bytes, model, target.data(), in.accumulate,
                                                Target::WEIGHT);
    target.check(verdict.tensor < 0, drawn ? "randk" : "topk");
}

}  // namespace

void fuzz(const Input& in) {
    const DefaultFloatEnv environment;
    switch (in.decoder % 6) {
        case 0: return fuzz_floats(in, in.kernels->half.fp32, "fp32");
        case 1: return fuzz_floats(in, in.kernels->half.fp16, "fp16");
        case 2: return fuzz_floats(in, in.kernels->half.bf16, "bf16");
        case 3: return fuzz_minmax8(in);
        case 4: return fuzz_sparse(in, false);
        default: return fuzz_sparse(in, true);
    }
}

}  // namespace edgegossip::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size >= edgegossip::fuzz::HEAD_BYTES) edgegossip::fuzz::fuzz(edgegossip::fuzz::take_apart(data, size));
    return 0;
}
