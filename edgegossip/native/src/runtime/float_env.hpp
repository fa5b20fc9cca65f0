// The floating-point environment that bit-exact kernels need, for one scope.
#pragma once

#include <cfenv>

namespace edgegossip {

// Rounds to nearest even and keeps denormals, whatever the calling thread had set (torch.set_flush_denormal, for one).
class DefaultFloatEnv {
public:
    DefaultFloatEnv() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatEnv() { std::fesetenv(&saved_); }
    DefaultFloatEnv(const DefaultFloatEnv&) = delete;
    DefaultFloatEnv& operator=(const DefaultFloatEnv&) = delete;

private:
    std::fenv_t saved_;
};

}  // namespace edgegossip
