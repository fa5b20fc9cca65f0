// libFuzzer target: every native decoder, without Python, as the Python layer calls it. run.py builds it with sanitizers.

#include <algorithm>

#include "codec/quantised.hpp"
#include "codec/sparse.hpp"
#include "codec/stepped.hpp"
#include "runtime/float_env.hpp"
#include "input.hpp"

namespace edgegossip::fuzz {
namespace {

using namespace coding;

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

void fuzz_stepped(const Input& in, bool dithered) {
    Target target(in);
    std::vector<int64_t> columns;  // eight rows, where a tensor can have them
    for (size_t k = 0; k + 1 < in.offsets.size(); k++) {
        const int64_t size = in.offsets[k + 1] - in.offsets[k];
        columns.push_back(size % 8 == 0 ? size / 8 : 0);
    }
    const auto decode = [&](float* out) {
        return decode_steps(*in.kernels, in.body.get(), in.body_bytes, in.offsets.data(), columns.data(), in.tensors(), dithered, in.accumulate,
                            Target::WEIGHT, out);
    };
    const int64_t checked = decode(nullptr), decoded = decode(target.data());
    if (checked != decoded) std::abort();
    target.check(decoded == 0, dithered ? "dither" : "deadzone");
    if (dithered) return;
    std::vector<int8_t> integers(size_t(in.offsets.back()), 0);
    if (decode_integers(*in.kernels, in.body.get(), in.body_bytes, in.offsets.data(), columns.data(), in.tensors(), 2, integers.data()) != 0) return;
    if (decoded != 0 || std::any_of(integers.begin(), integers.end(), [](int8_t q) { return q < -2 || q > 2; })) std::abort();
}

// Weights of CO3's codes, sign << 3 | level, in two rows as different as the product's.
constexpr uint8_t STATIC[2][16] = {{200, 90, 30, 12, 6, 2, 0, 0, 0, 90, 30, 12, 6, 2, 0, 0},
                                   {255, 3, 1, 1, 1, 1, 0, 0, 0, 3, 1, 1, 1, 1, 0, 0}};

// Quantisers as the codecs make them: kind, bits and what depends on them.
Quantiser quantiser_of(const Input& in, std::vector<float>* list) {
    const int kind = in.options[0] % 5, bucket_bits = in.options[2] % 9;
    Quantiser q{};
    q.kind = kind;
    q.bucket = bucket_bits == 8 ? 0 : int64_t(8) << (2 * bucket_bits > 13 ? 13 : 2 * bucket_bits);
    switch (kind) {
        case UNIFORM:
            q.bits = 2 + in.options[1] % 15;
            q.levels = (1 << (q.bits - 1)) - 1;
            if (in.options[3] != 0 && q.bits > 2) q.levels = (1 << (q.bits - 2)) + in.options[3] % (1 << (q.bits - 2));
            break;
        case LOG2:
            q.bits = 3 + in.options[1] % 3;
            q.levels = (1 << (q.bits - 1)) - 2;
            break;
        case LEVELS:
            q.bits = 2 + in.options[1] % 7;
            q.list_count = 2 + in.options[3] % ((1 << (q.bits - 1)) - 1);
            for (int k = 0; k < q.list_count; k++) list->push_back(float(k) / float(q.list_count - 1));
            q.list = list->data();
            break;
        case FP4: q.bits = 4; q.bucket = 0; q.levels = 5; break;
        default: q.bits = 1; q.bucket = 0;
    }
    return q;
}

// A body of sections, as the codecs read it: all are checked before anything is added.
void fuzz_sections(const Input& in) {
    std::vector<float> list;
    const Quantiser q = quantiser_of(in, &list);
    const Body body{in.body.get(), in.body_bytes};
    const StaticTables tables = q.kind == FP4 ? StaticTables{STATIC[0], 2, -1} : StaticTables{};
    Target target(in);
    const auto one_by_one = [&](Mode mode) {
        TableState state{};
        int64_t at = 0;
        for (int64_t k = 0; k < in.tensors(); k++) {
            if (in.tensor(k) == 0) continue;
            at = decode_section(*in.kernels, body, at, q, in.tensor(k), tables, &state, mode, Target::WEIGHT,
                                target.data() + in.offsets[size_t(k)], in.threads);
            if (at < 0) return at;
            if (at > body.size) std::abort();
        }
        return at;
    };
    bool at_zstd = false;  // which is the caller's to look at, while one by one it is no stage, or something is found wrong before
    const auto at_once = [&](Mode mode) {
        TableState state{};
        const Reached end = decode_sections(*in.kernels, body, {0, 0}, q, in.offsets.data(), in.tensors(), tables, &state, mode, Target::WEIGHT,
                                            target.data(), in.threads);
        at_zstd = end.position >= 0 && end.tensor < in.tensors();
        return at_zstd ? int64_t(BAD_CODER) : end.position;
    };
    const bool several = (in.options[0] & 128) != 0;
    const int64_t checked = several ? one_by_one(Mode::CHECK) : at_once(Mode::CHECK);
    if (in.accumulate && checked < 0) return target.check(false, "section");
    const Mode mode = in.accumulate ? Mode::ADD : Mode::STORE;
    const int64_t decoded = several ? at_once(mode) : one_by_one(mode);
    if (at_zstd ? checked >= 0 || decoded >= 0 : decoded != checked) {
        std::fprintf(stderr, "section: checked %lld, decoded %lld\n", static_cast<long long>(checked), static_cast<long long>(decoded));
        std::abort();
    }
    target.check(decoded >= 0, "section");
}

}  // namespace

void fuzz(const Input& in) {
    const DefaultFloatEnv environment;
    switch (in.decoder % 9) {
        case 0: return fuzz_floats(in, in.kernels->half.fp32, "fp32");
        case 1: return fuzz_floats(in, in.kernels->half.fp16, "fp16");
        case 2: return fuzz_floats(in, in.kernels->half.bf16, "bf16");
        case 3: return fuzz_minmax8(in);
        case 4: return fuzz_sparse(in, false);
        case 5: return fuzz_sparse(in, true);
        case 6: return fuzz_sections(in);
        case 7: return fuzz_stepped(in, true);
        default: return fuzz_stepped(in, false);
    }
}

}  // namespace edgegossip::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size >= edgegossip::fuzz::HEAD_BYTES) edgegossip::fuzz::fuzz(edgegossip::fuzz::take_apart(data, size));
    return 0;
}
