#include "../thread_team.hpp"

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

#include "../float_env.hpp"

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

// Never destroyed: its threads are there until the process is gone, also while static objects end.
alignas(Team) unsigned char room[sizeof(Team)];

void make_team() { new (room) Team; }

Team* first_team() {
    make_team();
    pthread_atfork(nullptr, nullptr, make_team);  // the child has one thread, and locks in whatever state they were
    return std::launder(reinterpret_cast<Team*>(room));
}

Team* const team = first_team();  // before there are threads that could fork

}  // namespace

void work_together(void (*work)(const void*), const void* with, int helpers) { team->run(work, with, helpers); }

}  // namespace edgegossip
