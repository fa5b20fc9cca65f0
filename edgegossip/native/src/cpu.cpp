#include "cpu.hpp"

namespace edgegossip {

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif

namespace {

bool always() { return true; }

#if defined(__x86_64__)
// The compiler's built-in asks the CPU and whether the operating system saves the wide registers.
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2");
}
#endif

}  // namespace

const std::vector<Isa>& compiled_isas() {
    static const std::vector<Isa> isas = {
        {"portable", &kernels_portable, always},
#if defined(__x86_64__)
        {"avx2", &kernels_avx2, has_avx2},
        {"avx512", &kernels_avx512, has_avx512},
#elif defined(__aarch64__)
        {"neon", &kernels_neon, always},
#endif
    };
    return isas;
}

std::vector<Isa> available_isas() {
    std::vector<Isa> found;
    for (const Isa& isa : compiled_isas())
        if (isa.present()) found.push_back(isa);
    return found;
}

const Isa* find_isa(const std::string& name) {
    for (const Isa& isa : compiled_isas())
        if (name == isa.name && isa.present()) return &isa;
    return nullptr;
}

const Isa* best_isa() {
    const Isa* best = nullptr;
    for (const Isa& isa : compiled_isas())
        if (isa.present()) best = &isa;
    return best;
}

}  // namespace edgegossip
