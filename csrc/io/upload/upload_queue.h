// Sends the parts of an upload.
//
// The queue has its own threads: the threads that fill parts also compute digests, and a part that
// waits for a digest must not wait for uploads of later parts. With one part at a time, the threads
// that add parts send them. The lowest number is sent first, and no part runs far ahead of the
// first missing one, because servers that assemble the file as it arrives keep later parts in
// memory.
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
#include "io/upload/parts.h"

namespace tensorizer {

struct UploadLimits {
  int at_once = 1;
  // How many parts ahead of the first missing one may be sent; null if the first part comes last.
  std::optional<std::uint64_t> ahead;
  // add() blocks while the queue holds more bytes in copies than this.
  std::uint64_t copied = 0;
};

// Thread-safe.
class UploadQueue {
 public:
  using Send = std::function<void(const UploadPart& part, Cancel& cancel)>;

  UploadQueue(const UploadLimits& limits, Send send);
  // Cancels parts that are not sent yet, and joins the threads.
  ~UploadQueue();
  UploadQueue(const UploadQueue&) = delete;
  UploadQueue& operator=(const UploadQueue&) = delete;

  // Adds a part. Rethrows an exception of an earlier send, as finish() does.
  void add(UploadPart part, Cancel& cancel);
  // Blocks until all parts are sent.
  void finish(Cancel& cancel);

 private:
  void work();
  bool may_send() const;
  // Sends the first part that waits.
  void send_first(std::unique_lock<std::mutex>& lock, Cancel& cancel);
  // Sends parts on this thread if no other one does.
  void send_here(std::unique_lock<std::mutex>& lock, Cancel& cancel);
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
