// A pool of idle connections.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tensorizer {

// Thread-safe. A child of fork() does not use the connections of its parent, but destroys them. The
// destructor of a connection must leave the parent's session with the server alone.
template <typename Connection>
class IdlePool {
 public:
  IdlePool() = default;
  IdlePool(const IdlePool&) = delete;
  IdlePool& operator=(const IdlePool&) = delete;

  // Returns an idle connection, or null.
  std::unique_ptr<Connection> take() {
    const std::lock_guard lock(mutex_);
    forget_parents();
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Connection> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  void give_back(std::unique_ptr<Connection> connection) {
    const std::lock_guard lock(mutex_);
    forget_parents();
    idle_.push_back(std::move(connection));
  }

  // Closes all idle connections.
  void clear() {
    const std::lock_guard lock(mutex_);
    forget_parents();
    idle_.clear();
  }

 private:
  void forget_parents() noexcept {
    if (process_ == getpid()) return;
    idle_.clear();
    process_ = getpid();
  }

  std::mutex mutex_;
  pid_t process_ = getpid();
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace tensorizer
