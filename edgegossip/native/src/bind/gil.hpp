// Python's lock, given back while a kernel runs.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace edgegossip {

// As nanobind's gil_scoped_release, but for a daemon thread that comes back while the interpreter ends: before Python 3.14
// PyEval_RestoreThread ends such a thread by pthread_exit, whose unwinding ends in std::terminate at the first destructor, and
// the process with SIGABRT instead of its own exit code. Such a thread stays here, as 3.14 has it; the process ends without it.
class WithoutGil {
public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;

private:
    PyThreadState* state_;
};

}  // namespace edgegossip
