// Where the bytes of a file go: the mirror image of a Source.
//
// A file is a prefix (header and index) and, behind it, sections whose sizes are known before their
// bytes. Section offsets count from the end of the prefix, because only the prefix holds absolute
// offsets and a writer that is fed one tensor at a time knows it last. Nothing can be seen under
// the target's name before finish() returns, except where a target is written in place
// (descriptors, devices, FIFOs, a file in a directory that cannot be written). A Sink that is
// destroyed without finish() aborts; destructors never throw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/cancel.h"

namespace tensorizer {

enum class SectionKind : std::uint8_t { Header, Data, Terminator };

// One labelled run of bytes behind the prefix: a tensor's header, a tensor's data, or the
// terminator. Its name is the tensor's stored name.
struct Section {
  SectionKind kind;
  std::string_view name;
  std::uint64_t offset;  // from the end of the prefix
  std::uint64_t size;
};

// What tells a file from all others on this machine.
struct FileIdentity {
  std::uint64_t device;
  std::uint64_t inode;

  bool operator==(const FileIdentity&) const = default;
};

class Sink {
 public:
  virtual ~Sink() = default;

  // True when bytes must come in ascending order, the prefix first, one write at a time.
  virtual bool ascending() const = 0;

  // Where in the target the prefix begins: not 0 for a descriptor that was handed over mid-file.
  virtual std::uint64_t start() const { return 0; }

  // How many writes at once pay, where all bytes are lent or not; 0 when more than the computing
  // threads never do.
  virtual int writes_in_flight(bool lent) const {
    (void)lent;
    return 0;
  }

  // How much room for the prefix serves those who do not know how long it will be.
  virtual std::uint64_t usual_prefix() const { return 64 << 10; }

  // Reserves room for a prefix of `size` bytes, a multiple of 4 KiB; called once, before anything
  // is written.
  virtual void reserve(std::uint64_t size) = 0;

  // Then, from those who know all of the file beforehand: every section, in order, the terminator
  // last. Throws where the target cannot hold them.
  virtual void announce(std::span<const Section> sections, Cancel& cancel) {
    (void)sections, (void)cancel;
  }

  // Whether a prefix of `size` bytes may come now although it is shorter than reserved: what stands
  // behind it has no place yet.
  virtual bool takes_short_prefix(std::uint64_t size) const {
    (void)size;
    return false;
  }

  // Writes the prefix: at least as long as reserved unless takes_short_prefix(), a multiple of 4
  // KiB. Longer than reserved moves everything behind it up, which an ascending sink cannot.
  virtual void write_prefix(ConstBytes prefix, Cancel& cancel) = 0;

  // Writes the pieces, one after another, from `offset` on, counted from the end of the prefix.
  // They may cover several neighbouring sections, or a part of one; `sections` says which. Safe
  // from any thread unless ascending.
  virtual void write(std::span<const Section> sections, std::uint64_t offset,
                     std::span<const ConstBytes> pieces, Cancel& cancel) = 0;

  // The same, of bytes that stay where they are, as they are, until finish() or abort(): who would
  // otherwise copy them need not.
  virtual void lend(std::span<const Section> sections, std::uint64_t offset,
                    std::span<const ConstBytes> pieces, Cancel& cancel) {
    write(sections, offset, pieces, cancel);
  }

  // The regular file that is being written in place: a tensor that is mapped from it must not be
  // read while it changes. Nothing where the target is replaced, or no file.
  virtual std::optional<FileIdentity> overwritten() const { return std::nullopt; }

  // Whether everybody sees the target while it is written: then a prefix may come several times,
  // each as long as the one before or longer.
  virtual bool in_place() const { return false; }

  // Makes the target appear, whole, of `size` bytes behind the prefix.
  virtual void finish(std::uint64_t size, Cancel& cancel) = 0;

  // Drops everything, leaving the target as it was before (in place: as far as it was written).
  virtual void abort() noexcept = 0;

  // For messages: the URI without secrets, quoted.
  virtual const std::string& label() const = 0;
};

}  // namespace tensorizer
