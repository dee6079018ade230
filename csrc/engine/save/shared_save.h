// Saves one file from several processes, each of which has parts of the tensors.
//
// The file is cut into sections, and one process writes all of a section. Which one, and how the
// data gets there, is up to the caller. What the digests of a section's data are, all processes
// must learn, because the header of a tensor may be in a section of another one.
//
// All processes make the object with the same layout. Then they call
//   start(): the first one without a text, the others with the text that it returned there;
//   own(), write() and take() for all sections; hand_in();
//   take_in() and finish() or release() in the first one, leave() in the others.
// After an error, or without these, the target stays as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "engine/options.h"
#include "engine/save/shard_publication.h"
#include "format/layout.h"
#include "io/shared_sink.h"

namespace tensorizer {

// Bytes of a tensor's data.
struct DataRange {
  std::size_t tensor;  // its number in the layout
  std::uint64_t start;
  std::uint64_t size;
};

class SharedSave {
 public:
  // `layout` has all tensors. Throws Error(InvalidArgument) for files that are encrypted, hashed in
  // order, or several, or whose names share data.
  SharedSave(std::string uri, std::unique_ptr<Layout> layout, const SaveOptions& options);
  ~SharedSave();
  SharedSave(const SharedSave&) = delete;
  SharedSave& operator=(const SharedSave&) = delete;

  // Returns the names of the tensors, as their numbers in the layout.
  std::vector<std::string_view> names() const;

  // Opens the target. `joined` is what the first process has returned here. `replaces`: see
  // SinkOptions.
  std::string start(const std::optional<std::string>& joined, std::string replaces = {});

  // Returns what must be equal in all processes, without any secret.
  std::string plan() const;
  std::size_t section_count() const noexcept;
  // Returns how many sections, from the first one on, have bytes of the prefix, which the first
  // process writes in hand_in().
  std::size_t head_sections() const noexcept;
  // Returns the data that write() takes, in the order of the file. The last range may be longer
  // than what is in the section: a chunk is digested where it begins.
  std::vector<DataRange> ranges(std::size_t section) const;
  // Returns how many bytes write() returns: those that all processes take, and those that only the
  // first one needs.
  std::pair<std::uint64_t, std::uint64_t> digest_sizes(std::size_t section) const;

  // Says which sections this process writes. Called before the next ones.
  void own(std::span<const std::size_t> sections);
  // Writes the data of a section, which is all of its ranges. Returns its digests as bytes.
  std::vector<std::byte> write(std::size_t section, ConstBytes data);
  // Takes the digests of a section: all bytes that write() has returned, or the first ones. Called
  // once for each section, by one thread, also while another one is in write().
  void take(std::size_t section, ConstBytes digests);

  std::string hand_in();
  void take_in(const std::string& handed_in);
  void finish();
  void leave();
  // Returns the file, whose name in its folder is `name`, to be published with others.
  UnpublishedFile release(std::string name);

  void abort() noexcept;
  // May be called from any thread: the running call and all later ones throw Error(Cancelled).
  void cancel() noexcept { cancel_.request(); }

 private:
  // The part of a range that is in a section, and the chunks that begin there.
  struct SectionRange {
    std::size_t tensor;
    std::uint64_t start;
    std::uint64_t size;  // in the section
    std::uint64_t first_chunk;
    std::uint64_t chunks;
    std::uint64_t needed;  // bytes from `start` on, with those of the last chunk
  };
  struct HashedRange {
    std::uint64_t start;
    std::uint64_t size;
    Digests digests;
  };

  std::uint64_t file_size() const { return prefix_size_ + layout_->file_size(); }
  std::vector<SectionRange> ranges_in(std::size_t section) const;
  // Completes the header of a tensor whose digests are all there, and writes it.
  void complete(std::size_t tensor);
  // Writes those bytes that are in sections of this process. `offset` is in the body.
  void write_own(std::uint64_t offset, ConstBytes bytes);

  const std::string uri_;
  const SaveOptions options_;
  Cancel cancel_;
  const std::unique_ptr<Layout> layout_;
  const std::uint64_t prefix_size_;
  std::uint64_t section_size_ = 0;
  bool joined_ = false;
  std::unique_ptr<SharedSink> sink_;
  std::vector<bool> owned_;
  std::vector<std::vector<HashedRange>> hashed_;  // by tensor
  std::vector<std::uint64_t> missing_;            // bytes without digests, by tensor
  std::size_t incomplete_ = 0;                    // how many tensors have some
};

}  // namespace tensorizer
