// A Source gives the bytes of one file, from any offset.
//
// Methods throw Error, whose message names the source without any secret. All methods are safe for
// concurrent use by multiple threads, except on a sequential() source. Offsets count from the
// beginning of the object that is read, in which the file begins at start().
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/redaction.h"
#include "codec/whole_hash.h"
#include "io/file_identity.h"
#include "io/mapping.h"

namespace tensorizer {

// Describes what makes reading a source fast.
struct ReadHints {
  // Concurrent reads; 0 if more than the computing threads never help.
  int reads_in_flight = 0;
  // The most concurrent reads that the user allows, whatever the number of threads.
  int most_reads = std::numeric_limits<int>::max();
  // Bytes of one read.
  std::uint64_t read_size = 4 << 20;
  // Bytes to read before they are digested, while they are in the processor's cache: the smallest
  // size that costs no more in many reads than in one.
  std::uint64_t cached_size = std::numeric_limits<std::uint64_t>::max();
  // The cost of one more read, in bytes: a smaller gap between wanted bytes is read along with
  // them.
  std::uint64_t read_cost = 16 << 10;
  // Reads that begin and end on multiples of this, in the source, move no other bytes.
  std::uint64_t unit = 1;

  // Returns the number of concurrent reads of a job that computes on `threads` threads.
  int reads_for(int threads) const {
    return std::min(std::max(threads, reads_in_flight), most_reads);
  }
};

// The read_size of a source that is in memory already. Several huge pages, because a page that two
// readers fill at once may be cleared by both; small enough that all readers end at about the same
// time.
inline constexpr std::uint64_t kReadFromMemory = 8 << 20;

// Counts what a source on a server did so far. Seconds are the sum over all connections.
struct SourceStats {
  std::uint64_t requests = 0;
  std::uint64_t connections = 0;
  std::uint64_t retries = 0;
  std::uint64_t received = 0;  // bytes
  double lookup = 0;           // of host names
  double connect = 0;
  double tls = 0;
  double first_byte = 0;  // from the request to the first byte of the response
  double transfer = 0;
};
SourceStats operator+(const SourceStats& one, const SourceStats& other);
SourceStats operator-(const SourceStats& now, const SourceStats& before);

class Source : public Redactor {
 public:
  // Redacts what was sent to the server of the source.
  void redact(Redaction&) const override {}

  // Fills the pieces, one after another, with the bytes from `offset` on. Pieces share memory where
  // nobody wants their bytes: sources that look at them are KeepingSources. Throws InvalidFormat if
  // the source ends before that. Safe for concurrent use by multiple threads, unless sequential().
  // Throws Cancelled soon after `cancel` is requested.
  virtual void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel);

  // Fills as much of `out` as the source has from `offset` on, and returns how many bytes that was:
  // fewer than asked for only at the end of the source. Otherwise like read().
  virtual std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) = 0;

  // Fills `out` with the bytes from `offset` on as the server itself has them, past caches on the
  // way: for bytes that read() gave and that are damaged. Returns false if there is no server that
  // could give other bytes. Otherwise like read().
  [[nodiscard]] virtual bool read_anew(std::uint64_t offset, Bytes out, Cancel& cancel) {
    (void)offset, (void)out, (void)cancel;
    return false;
  }

  // Returns the offset of the end of the source; null if it is known only by reading.
  virtual std::optional<std::uint64_t> size() const = 0;

  // Returns an identifier that changes when the content changes (size and modification time for
  // files, ETag for HTTP); null if unknown.
  virtual std::optional<std::string> version() const { return std::nullopt; }

  // Returns whether no other content of the file can have the same version(): a server's date has
  // whole seconds, and a file that was written in the present one may change once more in it.
  virtual bool is_exact_version() const { return false; }

  // Returns the digest that a server keeps of the whole source; null if it keeps none.
  virtual std::optional<WholeDigest> digest() { return std::nullopt; }

  // Throws Unavailable if the source was replaced during the load and no read could notice, so that
  // the bytes may be of several files; and HashMismatch if it checks_at_end(), and the file is not
  // the one that was signed. Called at the end of a load.
  virtual void confirm(Cancel& cancel) { (void)cancel; }

  // Returns the offset of the file in the source: not 0 for a descriptor that was handed over
  // mid-file.
  virtual std::uint64_t start() const { return 0; }

  // Returns a private, writable mapping of the whole source from offset 0 on, shared with the
  // caller; null if the source cannot be mapped.
  virtual std::shared_ptr<Mapping> map() { return nullptr; }

  // Maps the whole source into reserved address space, from `position` on (Mapping::add()). Returns
  // false if the source cannot be mapped.
  virtual bool map_into(Mapping& mapping, std::uint64_t position) {
    (void)mapping, (void)position;
    return false;
  }

  // Returns which file of this machine the source reads at any offset, or the first of several;
  // null for everything else (streams, memory, servers).
  virtual std::optional<FileIdentity> identity() const { return std::nullopt; }

  // Returns whether this file of the machine is one that the source reads.
  virtual bool reads(const FileIdentity& file) const { return identity() == file; }

  // Returns true if bytes come once and in order: one read at a time, each at or behind the end of
  // the one before. Bytes in between are skipped.
  virtual bool sequential() const { return false; }

  // Returns the number by which the address of memory should have the same remainder as the offset
  // of what is read into it, so that no byte is copied on the way; 1 if that makes no difference.
  virtual std::uint64_t block() const { return 1; }

  // Brings bytes into the page cache, so that reading them is fast, and returns when they are
  // there. Returns false if the source has no such cache, or reads around it.
  virtual bool cache(std::uint64_t offset, std::uint64_t size, Cancel& cancel) {
    (void)offset, (void)size, (void)cancel;
    return false;
  }

  // Returns the root digest of the model that somebody trusted has signed, and behind it, each in a
  // line, the names of the files in it whose bytes alone it gives, with digests of these; null if
  // they need not be signed.
  virtual std::optional<std::string> signed_as() const { return std::nullopt; }

  // Returns whether bytes that it gives are not known to be signed before confirm() has returned:
  // nothing that was made of them may be given out before.
  virtual bool checks_at_end() const { return false; }

  // Returns where the file ends that has this byte, of a source that has several files.
  virtual std::uint64_t end_of_file(std::uint64_t /*offset*/) const {
    return std::numeric_limits<std::uint64_t>::max();
  }

  // Returns true if every read is a round trip to a server, so that reading ahead pays.
  virtual bool remote() const { return false; }

  // Returns what makes reading `length` bytes from `offset` on fast. May look at the file.
  virtual ReadHints hints(std::uint64_t offset, std::uint64_t length) {
    (void)offset, (void)length;
    return {};
  }

  // Returns the statistics of a source on a server; all 0 for other sources.
  virtual SourceStats stats() const { return {}; }

  // Returns the response headers of a web server, with names in lower case; empty for other
  // sources.
  virtual std::vector<std::pair<std::string, std::string>> headers() const { return {}; }

  // Returns the URI for messages: without secrets, quoted.
  virtual const std::string& label() const = 0;

  // Returns "offset 7" for messages; "offset 7 of 'file'" if the source has several files.
  virtual std::string describe_offset(std::uint64_t offset) const {
    return "offset " + std::to_string(offset);
  }
};

// What another source is, but for what a derived class says. It is read at any offset, and neither
// mapped nor cached by the system.
class ForwardingSource : public Source {
 public:
  explicit ForwardingSource(std::shared_ptr<Source> file) : file_(std::move(file)) {}

  void redact(Redaction& text) const override { file_->redact(text); }
  bool read_anew(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return file_->read_anew(offset, out, cancel);
  }
  std::optional<std::uint64_t> size() const override { return file_->size(); }
  std::optional<std::string> version() const override { return file_->version(); }
  void confirm(Cancel& cancel) override { file_->confirm(cancel); }
  std::uint64_t start() const override { return file_->start(); }
  std::optional<std::string> signed_as() const override { return file_->signed_as(); }
  bool checks_at_end() const override { return file_->checks_at_end(); }
  std::uint64_t end_of_file(std::uint64_t offset) const override {
    return file_->end_of_file(offset);
  }
  bool remote() const override { return file_->remote(); }
  ReadHints hints(std::uint64_t offset, std::uint64_t length) override {
    return file_->hints(offset, length);
  }
  SourceStats stats() const override { return file_->stats(); }
  std::vector<std::pair<std::string, std::string>> headers() const override {
    return file_->headers();
  }
  const std::string& label() const override { return file_->label(); }
  std::string describe_offset(std::uint64_t offset) const override {
    return file_->describe_offset(offset);
  }

 protected:
  const std::shared_ptr<Source> file_;
};

// Throws the error of a source that ends at byte `end` when `missing` more were asked for.
[[noreturn]] void throw_source_ended(const std::string& label, std::uint64_t end,
                                     std::uint64_t missing);

// Returns a source over bytes in memory that `owner` keeps alive; the file begins at `start`.
std::unique_ptr<Source> memory_source(ConstBytes bytes, std::shared_ptr<const void> owner,
                                      std::string label = "the bytes in memory",
                                      std::uint64_t start = 0);

}  // namespace tensorizer
