// What every binding needs: the choice of instruction set and threads, and checks of arguments. One file bind/*.cpp a part.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bind/buffer.hpp"
#include "runtime/cpu.hpp"
#include "runtime/float_env.hpp"

namespace edgegossip {

namespace nb = nanobind;

using Name = std::optional<std::string>;

// The argument if given, else EDGEGOSSIP_ISA if set, else the best that the machine has. UsageError when it is not there.
const Isa& choose(const Name& argument);

// The argument if given, else EDGEGOSSIP_THREADS if set, else 1. UsageError unless it is a whole number from 1 to 256.
int choose_threads(std::optional<int> argument);

std::vector<std::string> available_names();

// ValueError unless it is a finite float32.
float checked_weight(double weight);

// One function a part: defines its functions in the module.
void bind_general(nb::module_& m);
void bind_coding(nb::module_& m);
void bind_eden(nb::module_& m);
void bind_half(nb::module_& m);
void bind_int8(nb::module_& m);
void bind_int8_program(nb::module_& m);
void bind_int8_sequences(nb::module_& m);
void bind_int8_shaping(nb::module_& m);
void bind_keys(nb::module_& m);
void bind_matrix(nb::module_& m);
void bind_minmax8(nb::module_& m);
void bind_sparse(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_quantise(nb::module_& m);
void bind_relay(nb::module_& m);
void bind_stepped(nb::module_& m);

}  // namespace edgegossip
