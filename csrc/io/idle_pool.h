// Connections that wait to be used again.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tensorizer {

// Thread-safe. A child of fork() gets none of its parent's connections, and leaves them as they
// are: closing one would say goodbye to the server for the parent as well. So the child leaks them.
template <typename Connection>
class IdlePool {
 public:
  IdlePool() = default;
  IdlePool(const IdlePool&) = delete;
  IdlePool& operator=(const IdlePool&) = delete;
  ~IdlePool() { forget_parents(); }

  // Returns null where none is idle.
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

  // Closes all that are idle.
  void clear() {
    const std::lock_guard lock(mutex_);
    forget_parents();
    idle_.clear();
  }

 private:
  void forget_parents() noexcept {
    if (process_ == getpid()) return;
    for (std::unique_ptr<Connection>& connection : idle_) static_cast<void>(connection.release());
    idle_.clear();
    process_ = getpid();
  }

  std::mutex mutex_;
  pid_t process_ = getpid();
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace tensorizer
