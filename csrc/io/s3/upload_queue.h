// Parts on their way up.
//
// They are sent by threads of the queue's own: whoever fills parts also takes their digests, and a
// part that waits for a digest must not wait for parts behind it. The lowest number goes first, and
// none runs far ahead of the first that is missing, because servers that put files together as they
// come keep what is ahead in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/cancel.h"
#include "io/s3/parts.h"

namespace tensorizer {

struct UploadLimits {
  int at_once = 1;
  // How far ahead of the first missing part; nothing where the first part comes last.
  std::optional<std::uint64_t> ahead;
  // Bytes in copies; more than that, and add() waits.
  std::uint64_t copied = 0;
};

class UploadQueue {
 public:
  using Send = std::function<void(const UploadPart& part, Cancel& cancel)>;

  UploadQueue(const UploadLimits& limits, Send send);
  // Gives up what is not sent yet.
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  // Both throw what a send has thrown.
  void add(UploadPart part, Cancel& cancel);
  // Returns when all are sent.
  void finish(Cancel& cancel);

 private:
  void work();
  bool may_send() const;
  void wait_until(const std::function<bool()>& done, std::unique_lock<std::mutex>& lock,
                  Cancel& cancel);

  const UploadLimits limits_;
  const Send send_;
  Cancel cancel_;  // of the sends

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, UploadPart> waiting_;
  std::set<std::uint64_t> sent_;  // from first_missing_ on
  std::uint64_t first_missing_ = 0;
  std::uint64_t copied_ = 0;
  int idle_ = 0;
  int sending_ = 0;
  bool all_there_ = false;
  bool stopped_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace tensorizer
