// Where the bytes of a file come from.
//
// A Source is opened once (open_source(), in io/open.h) and read from any thread. It throws Error,
// and its messages name the place without any secret. Offsets count from the start of the file
// object that the
// `.tensors` file lies in, and its magic stands at start().
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/mapping.h"

namespace tensorizer {

// What makes reading this source fast.
struct ReadHints {
  // How many reads at once pay; 0 when more than the computing threads never do.
  int reads_in_flight = 0;
  // How large one read should be.
  std::uint64_t read_size = 4 << 20;
  // How much of it to read before that is digested, while it is in the processor's cache: as much
  // as costs no more in many reads than in one.
  std::uint64_t part_size = std::numeric_limits<std::uint64_t>::max();
};

// The read_size of what is in memory already. Several huge pages, because whatever is filled by two
// readers at once may be cleared by both; little enough that all of them end at about the same
// time.
inline constexpr std::uint64_t kReadFromMemory = 8 << 20;

// What a source that is a server did so far. Seconds are those of all connections together.
struct SourceStats {
  std::uint64_t requests = 0;
  std::uint64_t connections = 0;
  std::uint64_t retries = 0;
  std::uint64_t received = 0;  // bytes
  double lookup = 0;           // of names
  double connect = 0;
  double tls = 0;
  double first_byte = 0;  // from the request to the first byte of its answer
  double transfer = 0;
};
SourceStats operator-(const SourceStats& now, const SourceStats& before);

class Source {
 public:
  virtual ~Source() = default;

  // Fills the pieces, one after another, with the bytes that start at `offset`, or throws: a source
  // that ends earlier is Error(InvalidFormat). Safe from any thread, except on a sequential source.
  // Ends soon after `cancel` is requested.
  virtual void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel);

  // As read(), but fills as much of `out` as the source has from `offset` on and says how much that
  // was: less than asked for only at the end of the source.
  virtual std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) = 0;

  // Where the source ends; nothing when that is known only by reading it.
  virtual std::optional<std::uint64_t> size() const = 0;

  // A text that is another one when the bytes are others, as far as that can be told without
  // reading them (a file's size and time of change); nothing where it cannot.
  virtual std::optional<std::string> version() const { return std::nullopt; }

  // Throws Error(Unavailable) where what was read may be of several files, because the source was
  // replaced meanwhile and no read could notice. Called at the end of a load.
  virtual void confirm(Cancel& cancel) { (void)cancel; }

  // Where the magic stands: not 0 for a descriptor that was handed over mid-file.
  virtual std::uint64_t start() const { return 0; }

  // A private, writable mapping of the whole source (page 0 on), or null where there is none.
  virtual std::shared_ptr<Mapping> map() { return nullptr; }

  // The descriptor behind the source, or -1.
  virtual int descriptor() const { return -1; }

  // A sequential source gives its bytes once, in order: one read at a time, each at or after the
  // end of the one before (what lies between is skipped).
  virtual bool sequential() const { return false; }

  // Whether every read asks a server, and takes as long as the answer is on its way: where reads
  // follow one another, it pays to read ahead.
  virtual bool remote() const { return false; }

  // `offset` and `length`: the part that is about to be read.
  virtual ReadHints hints(std::uint64_t offset, std::uint64_t length) {
    (void)offset, (void)length;
    return {};
  }

  virtual SourceStats stats() const { return {}; }

  // What a web server said in front of the file, names in lower case; nothing for other sources.
  virtual std::vector<std::pair<std::string, std::string>> headers() const { return {}; }

  // For messages: the URI without secrets, quoted.
  virtual const std::string& label() const = 0;
};

// For those who write one.
std::uint64_t total_size(std::span<const Bytes> pieces) noexcept;
// The error of a source that ends at byte `end` while `missing` more were asked for.
[[noreturn]] void throw_source_ended(const std::string& label, std::uint64_t end,
                                     std::uint64_t missing);

// A source over bytes in memory that `owner` keeps alive; the magic stands at `start`.
std::unique_ptr<Source> memory_source(ConstBytes bytes, std::shared_ptr<const void> owner,
                                      std::string label = "the tensor that holds the file",
                                      std::uint64_t start = 0);

}  // namespace tensorizer
