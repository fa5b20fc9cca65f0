// Which instruction sets this machine has, and the kernels of each.
#pragma once

#include <string>
#include <vector>

#include "runtime/kernels.hpp"
#include "int8/kernels.hpp"

namespace edgegossip {

struct Isa {
    const char* name;
    const Kernels* kernels;
    const Int8* int8;  // integer training has its own table: some instruction sets matter to it alone
    bool (*present)();  // on the CPU and enabled by the operating system
};

// Compiled in, slowest first; the first is "portable".
const std::vector<Isa>& compiled_isas();

// Those of compiled_isas() that this machine can execute, same order.
std::vector<Isa> available_isas();

// The one called `name`, or nullptr when it is unknown or this machine cannot execute it.
const Isa* find_isa(const std::string& name);

// The last of available_isas().
const Isa* best_isa();

}  // namespace edgegossip
