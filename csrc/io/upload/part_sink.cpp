#include "io/upload/part_sink.h"

#include <algorithm>

#include "base/error.h"
#include "base/number.h"

namespace tensorizer {

namespace {

// Used if the size is known beforehand.
constexpr std::uint64_t kSmallestPart = 8 << 20;
// How many parts may run ahead of the first missing one.
constexpr std::uint64_t kAhead = 20;
// How many parts of copied bytes may wait in the queue.
constexpr std::uint64_t kCopies = 4;
// More than the default, because parts that were sent cannot be moved.
constexpr std::uint64_t kUsualHead = 1 << 20;
// Those of 96 GiB, in chunks of the usual size. The head still fits into the smallest part.
constexpr std::uint64_t kUsualDigests = 3 << 20;

}  // namespace

std::uint64_t PartSink::usual_head_size() const { return kUsualHead; }
std::uint64_t PartSink::usual_digests_size() const { return kUsualDigests; }

void PartSink::begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) {
  head_size_ = head_size;
  if (!body_size) return;
  const std::uint64_t total = head_size + *body_size;
  part_size_ = std::max(kSmallestPart, (total + limits_.most_parts - 1) / limits_.most_parts);
  if (part_size_ > limits_.largest_part) {
    throw Error(ErrorKind::InvalidArgument, label() + " would have " + std::to_string(total) +
                                                " bytes, more than " + limits_.too_large +
                                                " may have");
  }
  total_ = total;
}

// Possible as long as the whole file fits into one part: parts that were sent cannot be moved.
bool PartSink::can_resize_head(std::uint64_t size, std::uint64_t more) const {
  const std::lock_guard lock(mutex_);
  return !queue_ && size + (parts_ ? parts_->held() : 0) + more <= part_size_;
}

void PartSink::write_head(ConstBytes head, Cancel& cancel) {
  if (head.size() != head_size_ && !can_resize_head(head.size(), 0)) {
    throw Error(ErrorKind::Internal, "the head of " + label() + " has another size than reserved");
  }
  take(0, {&head, 1}, KeptUntil::Return, cancel);
  head_size_ = head.size();
}

void PartSink::write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
                     Cancel& cancel) {
  take(head_size_ + offset, pieces, kept, cancel);
}

// Sends all parts, so that neither their memory nor threads are needed any more. The connections
// serve the other files of the save.
void PartSink::prepare(std::uint64_t size, Cancel& cancel) {
  send(rest_of(size), cancel);
  {
    const std::lock_guard lock(mutex_);
    queue_.reset();
  }
  prepared_ = true;
}

void PartSink::finish(std::uint64_t size, Cancel& cancel) {
  if (!prepared_) {
    std::vector<UploadPart> rest = rest_of(size);
    if (!queue_ && rest.size() == 1) {
      send_whole(rest.front(), cancel);
      return;
    }
    send(std::move(rest), cancel);
  }
  must_be_whole(head_size_ + size);
  complete(head_size_ + size, receipts_, cancel);
}

// A file of one part is written by one process, in one request.
std::string PartSink::share(Cancel& cancel) {
  return is_small() ? std::string() : upload_name(cancel);
}

std::string PartSink::hand_in(std::uint64_t size, Cancel& cancel) {
  if (is_small()) return {};
  prepare(size, cancel);
  std::string text;
  for (const auto& [number, receipt] : receipts_) {
    text += std::to_string(number) + ' ' + receipt + '\n';
  }
  return text;
}

void PartSink::take_in(std::string_view handed_in) {
  while (!handed_in.empty()) {
    const std::string_view line = handed_in.substr(0, handed_in.find('\n'));
    handed_in.remove_prefix(std::min(line.size() + 1, handed_in.size()));
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto number = parse_number(line.substr(0, space));
    if (!number || space == line.size()) {
      throw Error(ErrorKind::Internal, "another process has handed in no parts of " + label());
    }
    receipts_[*number] = line.substr(space + 1);
  }
}

// Returns the parts that have not been sent yet.
std::vector<UploadPart> PartSink::rest_of(std::uint64_t size) {
  std::vector<UploadPart> rest = parts().finish(head_size_ + size);
  if (only_) rest.push_back(std::move(*only_));
  only_.reset();
  if (head_size_ + size == 0) rest.emplace_back(0);
  return rest;
}

void PartSink::send(std::vector<UploadPart> rest, Cancel& cancel) {
  for (UploadPart& part : rest) queue().add(std::move(part), cancel);
  queue().finish(cancel);
}

UploadParts& PartSink::parts() {
  const std::lock_guard lock(mutex_);
  if (!parts_) parts_.emplace(part_size_, total_);
  return *parts_;
}

UploadQueue& PartSink::queue() {
  const std::lock_guard lock(mutex_);
  if (!queue_) {
    UploadLimits limits;
    limits.at_once = connections_;
    if (total_ && !shared_) limits.ahead = kAhead;
    limits.copied = kCopies * part_size_;
    queue_ = std::make_unique<UploadQueue>(limits, [this](const UploadPart& part, Cancel& cancel) {
      std::string receipt = send_part(part, cancel);
      const std::lock_guard guard(mutex_);
      receipts_[part.number + 1] = std::move(receipt);
    });
  }
  return *queue_;
}

void PartSink::take(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
                    Cancel& cancel) {
  for (UploadPart& part : parts().add(offset, pieces, kept == KeptUntil::End)) {
    if (part.number >= limits_.most_parts) {
      throw Error(ErrorKind::InvalidArgument,
                  label() + " would have more than " + std::to_string(limits_.most_parts) +
                      " parts of " + std::to_string(part_size_) + " bytes: set option 'part_size'");
    }
    if (is_small()) {
      only_ = std::move(part);  // sent by finish(), in one request
    } else {
      queue().add(std::move(part), cancel);
    }
  }
}

// A store would make a file of the parts that it is told of.
void PartSink::must_be_whole(std::uint64_t size) const {
  const std::uint64_t parts = (size + part_size_ - 1) / part_size_;
  if (receipts_.size() == parts && receipts_.rbegin()->first == parts) return;
  throw Error(ErrorKind::Internal, label() + " lacks parts that nobody has handed in");
}

}  // namespace tensorizer
