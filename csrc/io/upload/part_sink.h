// A sink that sends a file in parts, as they fill, to a store that makes a file of them at the end.
// A small file is sent in one request.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/shared_sink.h"
#include "io/upload/parts.h"
#include "io/upload/upload_queue.h"

namespace tensorizer {

// The limits of a store.
struct PartLimits {
  std::uint64_t most_parts;
  std::uint64_t largest_part;
  const char* too_large;  // what a file is that has more bytes, for messages
};

// A destructor of a derived class must call stop(): the threads of the queue use its members.
class PartSink : public SharedSink {
 public:
  bool sequential() const override { return false; }
  std::uint64_t usual_head_size() const override;
  std::uint64_t usual_digests_size() const override;
  void begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) override;
  bool can_resize_head(std::uint64_t size, std::uint64_t more) const override;
  void write_head(ConstBytes head, Cancel& cancel) override;
  void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
             Cancel& cancel) override;
  void prepare(std::uint64_t size, Cancel& cancel) override;
  void finish(std::uint64_t size, Cancel& cancel) override;

  std::uint64_t unit() const override { return part_size_; }
  std::string share(Cancel& cancel) override;
  std::string hand_in(std::uint64_t size, Cancel& cancel) override;
  void take_in(std::string_view handed_in) override;

 protected:
  // Of each part that is stored, by number from 1, what send() has returned.
  using Receipts = std::map<std::uint64_t, std::string>;

  // `part_size`: for files whose size is not known in begin(). `shared`: several processes write.
  PartSink(const PartLimits& limits, int connections, std::uint64_t part_size, bool shared)
      : limits_(limits), connections_(connections), shared_(shared), part_size_(part_size) {}

  // Cancels what is being sent, and waits until it has ended.
  void stop() noexcept { queue_.reset(); }

  // Sends the whole file.
  virtual void send_whole(const UploadPart& part, Cancel& cancel) = 0;
  // Sends one part, and returns a line of text about it. Called from several threads.
  virtual std::string send_part(const UploadPart& part, Cancel& cancel) = 0;
  // Makes the file of its parts.
  virtual void complete(std::uint64_t size, const Receipts& receipts, Cancel& cancel) = 0;
  // Returns the name of the upload, with which another process joins it. Starts it if necessary.
  virtual std::string upload_name(Cancel& cancel) = 0;

 private:
  // Returns whether the whole file is one part.
  bool is_small() const { return total_ && *total_ <= part_size_; }
  std::vector<UploadPart> rest_of(std::uint64_t size);
  void send(std::vector<UploadPart> rest, Cancel& cancel);
  UploadParts& parts();
  UploadQueue& queue();
  void take(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
            Cancel& cancel);
  void must_be_whole(std::uint64_t size) const;

  const PartLimits limits_;
  const int connections_;
  const bool shared_;
  std::uint64_t part_size_;
  std::uint64_t head_size_ = 0;
  std::optional<std::uint64_t> total_;
  bool prepared_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::optional<UploadParts> parts_;
  Receipts receipts_;
  std::optional<UploadPart> only_;
  std::unique_ptr<UploadQueue> queue_;  // last, so that it is destroyed first: it uses the others
};

}  // namespace tensorizer
