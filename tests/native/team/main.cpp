// Threads that call parallel_for at the same time, tasks that call it themselves, tasks that throw, and forked children:
// with the argument "alone" only of a process whose other threads wait, with "never" none.
// Exit code 0: every task ran exactly once, and every exception arrived.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/parallel.hpp"

namespace {

using edgegossip::parallel_for;

// Plain counters: a task that ran twice at once, or whose result is read before it ended, is a data race.
bool each_once(int64_t count, int threads) {
    std::vector<int> ran(size_t(count), 0);
    parallel_for(count, threads, [&](int64_t k) { ran[size_t(k)]++; });
    for (const int times : ran)
        if (times != 1) return false;
    return true;
}

bool nested() {
    std::atomic<int> ran{0};
    parallel_for(8, 3, [&](int64_t) { parallel_for(5, 3, [&](int64_t) { ran++; }); });
    return ran == 40;
}

bool throws(int threads) {
    try {
        parallel_for(100, threads, [](int64_t k) {
            if (k == 37) throw std::runtime_error("37");
        });
    } catch (const std::runtime_error&) {
        return each_once(100, threads);
    }
    return false;
}

bool all() {
    bool good = nested() && throws(1) && throws(4);
    for (int k = 0; k < 300; k++) good = good && each_once(1 + k % 9, 1 + k % 5);
    usleep(1000);  // helpers fall asleep
    return good && each_once(1000, 3);
}

bool in_child() {
    const pid_t child = fork();
    if (child == 0) _exit(all() ? 0 : 1);
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

int main(int, char** arguments) {
    const std::string which = arguments[1] == nullptr ? "" : arguments[1];
    bool good = all() && (which == "never" || in_child()) && all();
    std::atomic<bool> at_once{true};
    std::vector<std::thread> callers;
    for (int k = 0; k < 4; k++)
        callers.emplace_back([&] {
            if (!all()) at_once = false;
        });
    for (int k = 0; k < 5 && which.empty(); k++) good = good && in_child();  // whatever the callers hold
    for (std::thread& caller : callers) caller.join();
    good = good && at_once && all();
    std::puts(good ? "good" : "bad");
    return good ? 0 : 1;
}
