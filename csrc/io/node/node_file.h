// A file of this machine that has the bytes of a file on a server while processes load it.
//
// It is as long as that file, with a byte for each block behind it that says whether the block is
// there. Locks of the system say who fetches which blocks and who uses the file, so a process that
// is killed lets go of all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/descriptor.h"

namespace tensorizer {

class NodeFile {
 public:
  static constexpr std::uint64_t kBlock = 256 << 10;

  enum class State : std::uint8_t {
    There,    // in the file
    Claimed,  // by the caller, who fetches them
    Awaited,  // claimed by somebody else
  };
  // Some blocks of one state.
  struct Run {
    State state;
    std::uint64_t begin;
    std::uint64_t end;
    Descriptor claim;  // whose lock keeps others from claiming the blocks
  };

  // Opens the file in `folder`, or creates both. `content` tells the bytes of the server from all
  // others. Creating it removes files of other contents that nobody uses.
  NodeFile(const std::string& folder, const std::string& content, std::uint64_t size,
           Cancel& cancel);
  // Removes the file if nobody else uses it.
  ~NodeFile();
  NodeFile(const NodeFile&) = delete;
  NodeFile& operator=(const NodeFile&) = delete;

  // Returns the blocks from `begin` on that have the same state, and claims them if they are not
  // there and nobody else has.
  Run next(std::uint64_t begin, std::uint64_t end, Cancel& cancel) const;

  // Writes the bytes of claimed blocks, which are there then.
  void put(const Run& run, std::span<const ConstBytes> bytes, Cancel& cancel) const;

  // Replaces bytes of blocks that are there.
  void replace(std::uint64_t offset, ConstBytes bytes, Cancel& cancel) const;

  // Fills the pieces with bytes of blocks that are there.
  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) const;

 private:
  void open(Cancel& cancel);
  void leave();
  Run marked(std::uint64_t begin, std::uint64_t end, Cancel& cancel) const;
  void remove_unused() const;

  const std::string folder_;
  const std::string path_;
  const std::uint64_t blocks_at_;  // where the bytes for the blocks are
  Descriptor file_;
};

}  // namespace tensorizer
