#include <cmath>
#include <cstdlib>

#include "bind/bind.hpp"
#include "runtime/parallel.hpp"

namespace edgegossip {

namespace {

constexpr const char* ISA_ENV = "EDGEGOSSIP_ISA";
constexpr const char* THREADS_ENV = "EDGEGOSSIP_THREADS";

[[noreturn]] void raise_local_error(const std::string& message) {
    const nb::object error = nb::module_::import_("edgegossip.types").attr("UsageError");
    PyErr_SetString(error.ptr(), message.c_str());
    throw nb::python_error();
}

[[noreturn]] void raise_unusable(const std::string& name, bool from_env) {
    std::string message = (from_env ? std::string(ISA_ENV) + "=" : std::string("isa=")) + name;
    message += ": this build and this machine have no such instruction set; they can use ";
    const std::vector<std::string> names = available_names();
    for (size_t k = 0; k < names.size(); k++) message += (k ? ", " : "") + names[k];
    raise_local_error(message);
}

}  // namespace

std::vector<std::string> available_names() {
    std::vector<std::string> names;
    for (const Isa& isa : available_isas()) names.emplace_back(isa.name);
    return names;
}

const Isa& choose(const Name& argument) {
    const char* env = std::getenv(ISA_ENV);
    const bool from_env = !argument && env != nullptr && *env != 0;
    if (!argument && !from_env) return *best_isa();
    const std::string name = from_env ? env : *argument;
    if (const Isa* isa = find_isa(name)) return *isa;
    raise_unusable(name, from_env);
}

int choose_threads(std::optional<int> argument) {
    const char* env = std::getenv(THREADS_ENV);
    const bool from_env = !argument && env != nullptr && *env != 0;
    if (!argument && !from_env) return 1;
    char* end = nullptr;
    const long threads = from_env ? std::strtol(env, &end, 10) : long(*argument);
    if (threads >= 1 && threads <= MAX_THREADS && (!from_env || *end == 0)) return int(threads);
    raise_local_error((from_env ? std::string(THREADS_ENV) + "=" + env : "threads=" + std::to_string(*argument)) +
                      ": must be a whole number from 1 to " + std::to_string(MAX_THREADS));
}

float checked_weight(double weight) {
    const float narrow = float(weight);
    if (!std::isfinite(narrow)) throw nb::value_error("weight must be a finite float32");
    return narrow;
}

}  // namespace edgegossip
