// A shared object of which each process has its own.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>

namespace tensorizer {

// Thread-safe.
template <typename Value>
class PerProcess {
 public:
  // Returns the object of this process. The first call in a child of fork() makes a new one.
  std::shared_ptr<Value> get() {
    const std::lock_guard lock(mutex_);
    if (process_ != getpid()) {
      value_ = std::make_shared<Value>();
      process_ = getpid();
    }
    return value_;
  }

 private:
  std::mutex mutex_;
  pid_t process_ = getpid();
  std::shared_ptr<Value> value_ = std::make_shared<Value>();
};

}  // namespace tensorizer
