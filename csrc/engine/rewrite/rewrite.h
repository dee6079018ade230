// Writes a file anew to another place: with other digests, another key, or none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/cancel.h"
#include "engine/load/tensor_source.h"
#include "engine/move/tensor_access.h"
#include "engine/open/open_file.h"
#include "engine/options.h"
#include "format/layout.h"
#include "io/file_identity.h"

namespace tensorizer {

// Where the tensors of the new file come from: here, from the original as they are. Shared by all
// workers of the save. A sequential source is read by one of them at a time, in the order of the
// new file.
class Origin {
 public:
  // The bytes of `from` come from `source`. If the options of `from` ask for a file digest, checks
  // that instead of the tensors' saved digests.
  Origin(OpenFile& from, Source& source, Cancel& cancel);
  Origin(const Origin&) = delete;
  Origin& operator=(const Origin&) = delete;
  virtual ~Origin() = default;

  const TensorFile& file() const noexcept { return file_; }

  // Changes what the new file, which is of this format, has of a name of the original.
  virtual void change(std::uint32_t name, Format format, TensorSpec& spec) {
    (void)name, (void)format, (void)spec;
  }
  // Returns whether anything is read from this file.
  virtual bool reads(const FileIdentity& file) const { return file_.source.reads(file); }
  // Adds an entry to those that are read.
  void add(std::uint32_t entry) { order_.push_back(entry); }
  // Returns the most memory that a reader takes for each byte that is read.
  virtual std::uint64_t memory() const noexcept { return 0; }
  // Returns the digests of an entry's chunks as SaveItem has them.
  virtual std::span<const Digest> checked_chunks(std::uint32_t entry) const {
    (void)entry;
    return {};
  }
  // Returns a reader of the tensors, which have the numbers in which they were added.
  virtual std::unique_ptr<TensorReader> open_reader();
  // Called when all has been read. If it throws, the new file does not appear.
  virtual void confirm();

  // Reads data of the original. `number` is that of a reader.
  void read(TensorSource& source, std::uint32_t number, std::uint64_t position, Bytes bytes);

 protected:
  std::uint32_t entry_number(std::uint32_t number) const { return order_[number]; }
  const Entry& entry(std::uint32_t number) const {
    return file_.catalogue.entries()[order_[number]];
  }
  Cancel& cancel() const noexcept { return cancel_; }

 private:
  // Blocks until all earlier tensors have been read. Skips those that are never read. Cannot
  // deadlock: the worker that has an earlier tensor has already started to move it.
  void await_turn(std::uint32_t number);

  OpenFile& from_;
  std::optional<DataDigests> pinned_;
  const TensorFile file_;
  Cancel& cancel_;
  const bool sequential_;
  std::vector<std::uint32_t> order_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t next_ = 0;  // the tensor to read next
};

// The new name of each tensor that the new file has; null for all, under their own names.
using NewNames = std::optional<std::unordered_map<std::string, std::string>>;

struct RewriteRequest {
  std::string to;
  HashKinds hashes;
  int threads;
  SaveOptions options;
  NewNames names{};
  std::optional<Metadata> metadata{};  // of the new file
};

// Streams the tensors of `from`, as `origin` has them, to another file, within
// options.memory_ceiling. Checks every digest and MAC on the way. Throws what loads and saves
// throw; nothing appears at the target then.
void rewrite(OpenFile& from, Origin& origin, const RewriteRequest& request, Progress& progress,
             Cancel& cancel);

}  // namespace tensorizer
