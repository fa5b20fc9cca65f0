#include "net/relay.hpp"

#include <cerrno>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#ifdef __linux__

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace edgegossip {

namespace {

constexpr std::size_t SCRATCH_BYTES = 256 << 10;
constexpr int READS_AT_A_TIME = 4;  // then other pairs have their turn
constexpr std::uint64_t BELL = ~std::uint64_t{0};
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds LINGER{5};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct Way {
    std::vector<char> kept;  // read, not written yet
    std::size_t at = 0;      // what of it is written
    bool ended = false;      // the source has no more
    bool shut = false;       // and the sink was told
    std::uint64_t bytes = 0;

    bool waits() const { return at < kept.size(); }
};

struct Pair {
    std::uint64_t id = 0;
    int fd[2] = {-1, -1};  // outside, inside
    Way way[2];            // from fd[0] to fd[1], and back
    std::uint32_t watched[2] = {0, 0};
    bool broken = false;
    bool lingers = false;
    Clock::time_point deadline;

    ~Pair() {
        for (int f : fd)
            if (f >= 0) ::close(f);
    }
    bool finished() const { return broken || (way[0].shut && way[1].shut); }
};

void ring(int bell) {
    const std::uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(bell, &one, sizeof one);
}

void silence(int bell) {
    std::uint64_t count;
    [[maybe_unused]] ssize_t n = ::read(bell, &count, sizeof count);
}

}  // namespace

struct Relay::Body {
    int epoll = -1, bell = -1, news = -1;
    std::mutex lock;  // guards what follows, up to the thread
    std::vector<std::unique_ptr<Pair>> arriving;
    std::vector<std::uint64_t> to_cut;
    std::vector<RelayEnded> told;
    std::uint64_t last_id = 0;
    bool closing = false;
    std::thread thread;
    std::unordered_map<std::uint64_t, std::unique_ptr<Pair>> pairs;  // the thread's own
    std::vector<char> scratch = std::vector<char>(SCRATCH_BYTES);

    Body() {
        epoll = ::epoll_create1(EPOLL_CLOEXEC);
        bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        news = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = BELL;
        if (epoll < 0 || bell < 0 || news < 0 || ::epoll_ctl(epoll, EPOLL_CTL_ADD, bell, &event) < 0) {
            const int error = errno;
            close_all();
            errno = error;
            fail("relay");
        }
        thread = std::thread([this] { run(); });
    }

    ~Body() { close_all(); }

    void close_all() {
        for (int* f : {&epoll, &bell, &news})
            if (*f >= 0) ::close(std::exchange(*f, -1));
    }

    void run() {
        std::vector<epoll_event> events(64);
        while (take_orders()) {
            const int count = ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), patience_ms());
            for (int k = 0; k < count; ++k) {
                if (events[k].data.u64 == BELL) {
                    silence(bell);
                    continue;
                }
                const auto found = pairs.find(events[k].data.u64 >> 1);
                if (found == pairs.end()) continue;
                if (events[k].events & EPOLLERR) found->second->broken = true;
                move(*found->second);
            }
            expire();
        }
        pairs.clear();
    }

    bool take_orders() {
        std::vector<std::unique_ptr<Pair>> arrived;
        std::vector<std::uint64_t> cut;
        {
            std::lock_guard<std::mutex> guard(lock);
            if (closing) return false;
            arrived.swap(arriving);
            cut.swap(to_cut);
        }
        for (auto& pair : arrived) {
            Pair& p = *pair;
            pairs.emplace(p.id, std::move(pair));
            move(p);
        }
        for (std::uint64_t id : cut) {
            const auto found = pairs.find(id);
            if (found == pairs.end()) continue;
            found->second->broken = true;
            settle(*found->second);
        }
        return true;
    }

    int patience_ms() const {
        for (const auto& [id, pair] : pairs)
            if (pair->lingers) return 200;
        return -1;
    }

    void expire() {
        const auto now = Clock::now();
        std::vector<Pair*> late;
        for (const auto& [id, pair] : pairs)
            if (pair->lingers && pair->deadline <= now) late.push_back(pair.get());
        for (Pair* pair : late) {
            pair->broken = true;
            settle(*pair);
        }
    }

    // Whatever can be moved now, both ways.
    void move(Pair& p) {
        for (int k = 0; k < 2 && !p.broken; ++k) move_one(p, p.way[k], p.fd[k], p.fd[1 - k]);
        settle(p);
    }

    void move_one(Pair& p, Way& way, int source, int sink) {
        for (int reads = 0; reads < READS_AT_A_TIME; ++reads) {
            if (way.waits()) {
                way.at += write(p, sink, way.kept.data() + way.at, way.kept.size() - way.at);
                if (way.waits()) return;
                way.kept.clear();
                way.kept.shrink_to_fit();
                way.at = 0;
            }
            if (way.ended) {
                if (!way.shut) ::shutdown(sink, SHUT_WR);
                way.shut = true;
                return;
            }
            const ssize_t n = ::recv(source, scratch.data(), scratch.size(), MSG_DONTWAIT);
            if (n < 0) {
                if (errno == EINTR) continue;
                if (errno != EAGAIN && errno != EWOULDBLOCK) p.broken = true;
                return;
            }
            if (n == 0) {
                way.ended = true;
                continue;
            }
            const auto size = static_cast<std::size_t>(n);
            way.bytes += size;
            const std::size_t written = write(p, sink, scratch.data(), size);
            if (written < size) way.kept.assign(scratch.data() + written, scratch.data() + size);
        }
    }

    std::size_t write(Pair& p, int sink, const char* data, std::size_t size) {
        std::size_t written = 0;
        while (written < size) {
            const ssize_t n = ::send(sink, data + written, size - written, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                if (errno != EAGAIN && errno != EWOULDBLOCK) p.broken = true;
                break;
            }
            written += static_cast<std::size_t>(n);
        }
        return written;
    }

    // Wait for what would let the pair go on, or end it.
    void settle(Pair& p) {
        if (p.finished()) {
            finish(p);
            return;
        }
        if ((p.way[0].shut || p.way[1].shut) && !p.lingers) {
            p.lingers = true;
            p.deadline = Clock::now() + LINGER;
        }
        for (int k = 0; k < 2; ++k) {
            const Way& from = p.way[k];
            const std::uint32_t wanted = (from.ended || from.waits() ? 0u : static_cast<std::uint32_t>(EPOLLIN)) |
                                         (p.way[1 - k].waits() ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
            if (wanted == p.watched[k]) continue;
            epoll_event event{};
            event.events = wanted;
            event.data.u64 = p.id << 1 | static_cast<std::uint64_t>(k);
            // Not registered while nothing is wanted: a hang-up would be told again and again.
            const int what = !p.watched[k] ? EPOLL_CTL_ADD : wanted ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
            if (::epoll_ctl(epoll, what, p.fd[k], &event) < 0) {
                finish(p);
                return;
            }
            p.watched[k] = wanted;
        }
    }

    void finish(Pair& p) {
        const RelayEnded ended{p.id, p.way[0].bytes, p.way[1].bytes};
        pairs.erase(p.id);
        std::lock_guard<std::mutex> guard(lock);
        told.push_back(ended);
        ring(news);
    }
};

Relay::Relay() : body_(std::make_unique<Body>()) {}

Relay::~Relay() { close(); }

std::uint64_t Relay::add(int outside, int inside) {
    auto pair = std::make_unique<Pair>();
    pair->fd[0] = outside;
    pair->fd[1] = inside;
    std::lock_guard<std::mutex> guard(body_->lock);
    if (body_->closing) throw std::runtime_error("the relay is closed");
    const std::uint64_t id = pair->id = ++body_->last_id;
    body_->arriving.push_back(std::move(pair));
    ring(body_->bell);
    return id;
}

void Relay::cut(std::uint64_t id) {
    std::lock_guard<std::mutex> guard(body_->lock);
    body_->to_cut.push_back(id);
    ring(body_->bell);
}

int Relay::fileno() const { return body_->news; }

std::vector<RelayEnded> Relay::ended() {
    std::lock_guard<std::mutex> guard(body_->lock);
    silence(body_->news);
    return std::exchange(body_->told, {});
}

void Relay::close() {
    {
        std::lock_guard<std::mutex> guard(body_->lock);
        body_->closing = true;
        ring(body_->bell);
    }
    if (body_->thread.joinable()) body_->thread.join();
    std::lock_guard<std::mutex> guard(body_->lock);
    body_->arriving.clear();
}

}  // namespace edgegossip

#else

namespace edgegossip {

struct Relay::Body {};

Relay::Relay() { throw std::runtime_error("TLS between boards needs Linux"); }
Relay::~Relay() = default;
std::uint64_t Relay::add(int, int) { return 0; }
void Relay::cut(std::uint64_t) {}
int Relay::fileno() const { return -1; }
std::vector<RelayEnded> Relay::ended() { return {}; }
void Relay::close() {}

}  // namespace edgegossip

#endif
