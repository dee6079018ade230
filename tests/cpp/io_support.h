// Shared by the tests of the io layer: files in a temporary folder, and functions that read and
// write them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <semaphore>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "io/descriptor.h"
#include "io/places/open.h"
#include "support.h"
#include "tensorizer_ops/hooks.h"

namespace tensorizer::testing_support {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlock = 4096;

inline std::string text_pattern(std::size_t size, std::uint32_t seed = 1) {
  return std::string(as_text(pattern(size, seed)));
}

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline mode_t mode_of(const fs::path& path) {
  struct stat status{};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

class Folder {
 public:
  explicit Folder(const std::string& parent) {
    std::string text = parent + "/io_test_XXXXXX";
    if (mkdtemp(text.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = text;
  }
  ~Folder() { fs::remove_all(path_); }

  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

// Calls a function whenever a job on this thread checks for a cancel, with the number of checks so
// far. Only one may exist at a time.
class Polls {
 public:
  explicit Polls(std::function<void(int)> told) : told_(std::move(told)) {
    current_ = this;
    owner_ = std::this_thread::get_id();
    set_interrupt_hook([] {
      if (std::this_thread::get_id() == owner_) current_->told_(++current_->count_);
    });
  }
  ~Polls() { set_interrupt_hook(nullptr); }
  Polls(const Polls&) = delete;
  Polls& operator=(const Polls&) = delete;

 private:
  static inline Polls* current_ = nullptr;  // read only on its thread
  static inline std::atomic<std::thread::id> owner_;
  std::function<void(int)> told_;
  int count_ = 0;
};

// A lease on a file, which every open() of it waits for, also of this process.
class Lease {
 public:
  explicit Lease(const fs::path& path) : file_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    fcntl(file_.get(), F_SETSIG, SIGURG);  // is ignored; the usual signal ends the process
    is_taken_ = fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
  }

  bool is_taken() const { return is_taken_; }  // false if the file system has no leases
  bool is_waited_for() const { return fcntl(file_.get(), F_GETLEASE) != F_WRLCK; }
  void release() const { fcntl(file_.get(), F_SETLEASE, F_UNLCK); }

 private:
  const Descriptor file_;
  bool is_taken_ = false;
};

// Runs an action on another thread once a job on this thread waits.
class OnceItWaits {
 public:
  explicit OnceItWaits(std::function<void()> action)
      : thread_([this, action = std::move(action)] {
          waits_.acquire();
          action();
        }) {}
  ~OnceItWaits() { release(); }

 private:
  void release() {
    if (!released_.exchange(true)) waits_.release();
  }

  std::atomic<bool> released_{false};
  std::binary_semaphore waits_{0};
  // At its second check, the job has waited.
  Polls polls_{[this](int count) {
    if (count == 2) release();
  }};
  std::jthread thread_;
};

class IoTest : public testing::Test {
 protected:
  std::unique_ptr<Source> source(const std::string& uri) { return open_source(uri, {}, cancel_); }
  std::unique_ptr<Sink> sink(const std::string& uri, SinkOptions options = {}) {
    return open_sink(uri, options, cancel_);
  }

  std::string read(Source& source, std::uint64_t offset, std::size_t size) {
    std::string text(size, '\0');
    const Bytes bytes = std::as_writable_bytes(std::span(text));
    source.read(offset, {&bytes, 1}, cancel_);
    return text;
  }

  std::string read_up_to(Source& source, std::uint64_t offset, std::size_t size) {
    std::string text(size, '\0');
    text.resize(source.read_up_to(offset, std::as_writable_bytes(std::span(text)), cancel_));
    return text;
  }

  // `offset` counts from the end of the head.
  void write(Sink& sink, std::uint64_t offset, std::string_view text) {
    const ConstBytes piece = as_bytes(text);
    sink.write(offset, {&piece, 1}, KeptUntil::Return, cancel_);
  }

  // Saves the head first, then `data`.
  void save(Sink& sink, std::string_view head, std::string_view data) {
    sink.begin(head.size(), data.size());
    sink.write_head(as_bytes(head), cancel_);
    write(sink, 0, data);
    sink.finish(data.size(), cancel_);
  }

  // Expects that `action`, which waits without end, checks for a cancel at least every 200 ms and
  // ends when it is cancelled. The clock is a thread that sleeps, so on a busy machine it is as
  // late as everything else.
  void expect_cancelled_soon(const std::function<void()>& action) {
    std::atomic<int> ticks{0};
    const std::jthread clock([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); ++ticks) std::this_thread::sleep_for(kPollInterval);
    });
    std::vector<int> asked;
    {
      const Polls polls([&](int count) {
        asked.push_back(ticks);
        if (count == 7) cancel_.request();
      });
      EXPECT_EQ(kind_of(action), ErrorKind::Cancelled);
    }
    ASSERT_GE(asked.size(), 7U);
    // The first checks may come from before the wait. At least one of the later ones must be in
    // time.
    int shortest = asked[4] - asked[3];
    for (std::size_t i = 5; i < asked.size(); ++i) {
      shortest = std::min(shortest, asked[i] - asked[i - 1]);
    }
    EXPECT_LE(shortest, 4);
  }

  Folder folder_{testing::TempDir()};
  Cancel cancel_;
  const std::string head_ = text_pattern(kBlock, 7);
};

}  // namespace tensorizer::testing_support
