#include "runtime/thread_team.hpp"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "runtime/float_env.hpp"

namespace edgegossip {

namespace {

// A layer's next kernel mostly comes sooner; waking a sleeper takes longer than small kernels.
constexpr std::chrono::microseconds PATIENCE{60};

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until done() or for PATIENCE. The clock takes as long as some looks.
template <class Done>
bool soon(const Done& done) {
    const auto until = std::chrono::steady_clock::now() + PATIENCE;
    do {
        for (int k = 0; k < 32; k++) {
            if (done()) return true;
            relax();
        }
    } while (std::chrono::steady_clock::now() < until);
    return false;
}

// New threads block the signals that the thread that starts them blocks: a signal for Python is not for one that sleeps here.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &saved_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t saved_;
};

class Team {
public:
    void run(void (*work)(const void*), const void* with, int helpers) {
        if (taken_.exchange(true, std::memory_order_acquire)) {  // by another thread, or by what we are a task of
            work(with);
            return;
        }
        grow(helpers);
        offer(work, with, helpers);
        work(with);
        finish();
        taken_.store(false, std::memory_order_release);
    }

private:
    void grow(int helpers) {
        if (threads_ >= helpers) return;
        const SignalsBlocked blocked;
        try {
            for (; threads_ < helpers; threads_++) std::thread([this] { help(); }).detach();
        } catch (const std::system_error&) {  // no more threads; those that there are do it all
        } catch (const std::bad_alloc&) {
        }
    }

    void offer(void (*work)(const void*), const void* with, int helpers) {
        int sleeping;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            work_ = work;
            with_ = with;
            seats_ = helpers;
            calls_.fetch_add(1, std::memory_order_release);
            sleeping = sleeping_;
        }
        for (int k = 0; k < helpers && k < sleeping; k++) wake_.notify_one();
    }

    // Nobody begins any more; who has begun ends.
    void finish() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            seats_ = 0;
        }
        if (soon([this] { return active_.load(std::memory_order_acquire) == 0; })) return;
        std::unique_lock<std::mutex> lock(mutex_);
        ended_.wait(lock, [this] { return active_.load(std::memory_order_relaxed) == 0; });
    }

    void help() {
        const DefaultFloatEnv env;
        for (uint64_t seen = 0;;) {
            const auto called = [&] { return calls_.load(std::memory_order_acquire) != seen; };
            soon(called);
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            wake_.wait(lock, called);
            sleeping_--;
            seen = calls_.load(std::memory_order_relaxed);
            if (seats_ == 0) continue;
            seats_--;
            active_.fetch_add(1, std::memory_order_relaxed);
            const auto work = work_;
            const void* const with = with_;
            lock.unlock();
            work(with);
            lock.lock();
            if (active_.fetch_sub(1, std::memory_order_release) == 1) ended_.notify_one();
        }
    }

    std::atomic<bool> taken_{false};
    int threads_ = 0;  // of the one who has the team
    std::mutex mutex_;
    std::condition_variable wake_, ended_;
    std::atomic<uint64_t> calls_{0};  // changed under the mutex, as all that follows
    std::atomic<int> active_{0};
    int seats_ = 0, sleeping_ = 0;
    void (*work_)(const void*) = nullptr;
    const void* with_ = nullptr;
};

// The entry of GNU's OpenMP for code that a compiler has made of "#pragma omp parallel". The threads are the calling thread's own
// team, which lives as long as it and is the one that torch's operators on this thread have. A team of another size would have to
// be made anew each time, hence always all of them.
class OpenMp {
public:
    // Whether it is there. torch loads it for everybody to see; it may come later than we do.
    bool run(void (*work)(const void*), const void* with, int threads) {
        if (forked_) return false;
        Parallel parallel = parallel_.load(std::memory_order_relaxed);
        if (parallel == nullptr) parallel = find();
        if (parallel == nullptr) return false;
        Call call{work, with};
        parallel(
            [](void* one) {
                const DefaultFloatEnv env;
                const Call& call = *static_cast<const Call*>(one);
                call.work(call.with);
            },
            &call, unsigned(threads), 0);
        return true;
    }

    // A child has its parent's teams without their threads, and would wait for them. Nobody can tell whether there are any.
    void before_fork() { find(); }
    void in_child() { forked_ = parallel_.load(std::memory_order_relaxed) != nullptr; }

private:
    using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

    Parallel find() {
        const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
        parallel_.store(parallel, std::memory_order_relaxed);
        return parallel;
    }

    struct Call {
        void (*work)(const void*);
        const void* with;
    };
    std::atomic<Parallel> parallel_{nullptr};
    bool forked_ = false;
};

OpenMp openmp;

// Never destroyed: its threads are there until the process is gone, also while static objects end.
alignas(Team) unsigned char room[sizeof(Team)];

void make_team() { new (room) Team; }

void before_fork() { openmp.before_fork(); }

void in_child() {
    make_team();  // the child has one thread, and locks in whatever state they were
    openmp.in_child();
}

Team* first_team() {
    make_team();
    pthread_atfork(before_fork, nullptr, in_child);
    return std::launder(reinterpret_cast<Team*>(room));
}

Team* const team = first_team();  // before there are threads that could fork

}  // namespace

void work_together(void (*work)(const void*), const void* with, int helpers, int threads) {
    if (!openmp.run(work, with, threads)) team->run(work, with, helpers);
}

}  // namespace edgegossip
