// Bytes between pairs of sockets, on a thread that never waits for Python. Linux only (epoll); elsewhere the constructor throws.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace edgegossip {

struct RelayEnded {
    std::uint64_t id;
    std::uint64_t in_bytes;   // from outside to inside
    std::uint64_t out_bytes;  // from inside to outside
};

// What one side cannot take yet is kept, at most 256 KiB a way, and the other side is not read meanwhile. The end of one way is
// passed on; a pair whose other way does not end within 5 s of that is closed. All functions may be called from any thread.
class Relay {
public:
    Relay();   // throws std::system_error
    ~Relay();  // as `close`
    Relay(const Relay&) = delete;
    Relay& operator=(const Relay&) = delete;

    // Takes over two connected sockets, also when it throws. The id is never used again.
    std::uint64_t add(int outside, int inside);
    void cut(std::uint64_t id);
    // Readable while `ended` has something to tell.
    int fileno() const;
    std::vector<RelayEnded> ended();
    // Ends every pair and the thread.
    void close();

private:
    struct Body;
    std::unique_ptr<Body> body_;
};

}  // namespace edgegossip
