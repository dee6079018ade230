// A file of which an older version lies on a local disk: what both have in common is read there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/open/open_file.h"

namespace tensorizer {

// Thread-safe.
class PatchedSource final : public ForwardingSource {
 public:
  // Reads all of `older` on so many threads to learn which headers and chunks it has. `newer` must
  // list digests of chunks. Both must outlive this source.
  PatchedSource(OpenFile& newer, OpenFile& older, int threads, Cancel& cancel);

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override;
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override;
  void confirm(Cancel& cancel) override;
  bool reads(const FileIdentity& file) const override {
    return file_->reads(file) || older_.reads(file);
  }

  // Return how many bytes have been read of each file.
  std::uint64_t fetched() const noexcept { return fetched_; }
  std::uint64_t kept() const noexcept { return kept_; }

 private:
  // Bytes of the newer file that the older one has as well.
  struct Common {
    std::uint64_t offset;  // in the newer file
    std::uint64_t size;
    std::uint64_t older_offset;
  };

  Source& older_;
  std::vector<Common> common_;  // sorted by offset
  std::atomic<std::uint64_t> fetched_ = 0;
  std::atomic<std::uint64_t> kept_ = 0;
};

}  // namespace tensorizer
