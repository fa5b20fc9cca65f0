#include "runtime/cpu.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace edgegossip {

extern const Kernels kernels_portable;
extern const Int8 int8_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512vbmi;
extern const Int8 int8_avx2, int8_avxvnni, int8_avx512vnni;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
extern const Int8 int8_neon, int8_dotprod;
#endif

namespace {

bool always() { return true; }

#if defined(__x86_64__)
// Not every compiler's built-in knows the name "lzcnt".
bool has_lzcnt() {
    static const bool found = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c >> 5 & 1) != 0;
    }();
    return found;
}

// The compiler's built-in asks the CPU and whether the operating system saves the wide registers.
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && has_lzcnt();
}

bool has_avx512() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("bmi2") && has_lzcnt();
}

// Not every compiler's built-in knows the name "avxvnni"; it needs nothing of the system beyond AVX2. Asked for once: in a virtual
// machine `cpuid` goes to the hypervisor and back, which takes longer than most calls of a kernel.
[[maybe_unused]] bool has_avxvnni() {
    static const bool found = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
    }();
    return found;
}

[[maybe_unused]] bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

[[maybe_unused]] bool has_avx512vbmi() {
    return has_avx512vnni() && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
}
#elif defined(__aarch64__)
[[maybe_unused]] bool has_dotprod() {
#if defined(__linux__)
    constexpr unsigned long ASIMD_DOT_PRODUCT = 1ul << 20;  // HWCAP_ASIMDDP, which old headers lack
    return (getauxval(AT_HWCAP) & ASIMD_DOT_PRODUCT) != 0;
#else
    return false;
#endif
}
#endif

}  // namespace

// CMakeLists.txt says which are left out.
const std::vector<Isa>& compiled_isas() {
    static const std::vector<Isa> isas = {
        {"portable", &kernels_portable, &int8_portable, always},
#if defined(__x86_64__)
#if !defined(EDGEGOSSIP_WITHOUT_AVX2)
        {"avx2", &kernels_avx2, &int8_avx2, has_avx2},
#endif
#if !defined(EDGEGOSSIP_WITHOUT_AVXVNNI)
        {"avxvnni", &kernels_avx2, &int8_avxvnni, has_avxvnni},
#endif
#if !defined(EDGEGOSSIP_WITHOUT_AVX512)
        {"avx512", &kernels_avx512, &int8_avx2, has_avx512},
#endif
#if !defined(EDGEGOSSIP_WITHOUT_AVX512VNNI)
        {"avx512vnni", &kernels_avx512, &int8_avx512vnni, has_avx512vnni},
#endif
#if !defined(EDGEGOSSIP_WITHOUT_AVX512VBMI)
        {"avx512vbmi", &kernels_avx512vbmi, &int8_avx512vnni, has_avx512vbmi},
#endif
#elif defined(__aarch64__)
        {"neon", &kernels_neon, &int8_neon, always},
#if !defined(EDGEGOSSIP_WITHOUT_DOTPROD)
        {"dotprod", &kernels_neon, &int8_dotprod, has_dotprod},
#endif
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
    static const Isa* const found = [] {
        const Isa* best = nullptr;
        for (const Isa& isa : compiled_isas())
            if (isa.present()) best = &isa;
        return best;
    }();
    return found;
}

}  // namespace edgegossip
