// A Sink receives the bytes of one file; it is the mirror image of a Source.
//
// A file is a head and a body behind it. Offsets in the body count from the end of the head,
// because the head of many formats holds an index that is known last: its final bytes may come
// last, and it may then need more room than was reserved. What the bytes mean, and how they are
// aligned, is up to the caller.
//
// The calls come in this order: begin(), then write_head(), announce() and write() as each of them
// allows, then finish() or abort(). Methods throw Error, whose message names the target without any
// secret. After an error only abort() and the destructor may be called.
//
// The target keeps its old content until finish() returns, unless it is written in place
// (in_place()). A Sink that is destroyed without finish() aborts. Destructors never throw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/file_identity.h"

namespace tensorizer {

// A range of the body that has a name.
struct NamedRange {
  std::string_view name;
  std::uint64_t offset;  // in the body
  std::uint64_t size;    // more than 0
};

// How long the caller keeps the bytes of a write() in memory, unchanged.
enum class KeptUntil : std::uint8_t {
  Return,  // until write() returns
  End,     // until finish() or abort() returns
};

class Sink {
 public:
  virtual ~Sink() = default;

  // Returns true if bytes must come once and in order: the head first, then the body, one call at a
  // time. Pipes and uploads in one request are sequential.
  virtual bool sequential() const = 0;

  // Returns the offset of the head in the target: not 0 for a descriptor that was handed over
  // mid-file.
  virtual std::uint64_t start() const { return 0; }

  // Returns how many concurrent writes make this sink fast, if all bytes are kept that long; 0 if
  // more than the computing threads never help.
  virtual int writes_in_flight(KeptUntil kept) const {
    (void)kept;
    return 0;
  }

  // Returns how much room to reserve for a head whose size is not known yet.
  virtual std::uint64_t usual_head_size() const { return 64 << 10; }

  // Returns how much room to reserve for digests of chunks, too, if nobody knows their number.
  virtual std::uint64_t usual_digests_size() const { return 0; }

  // Starts the file with room for a head of `head_size` bytes. `body_size` is null if it is not
  // known yet. Called once, before all other writing calls. Throws InvalidArgument if the target
  // cannot hold a file of that size, or has to know the size and does not.
  virtual void begin(std::uint64_t head_size, std::optional<std::uint64_t> body_size) = 0;

  // Makes finish() cut off what a regular file that is written in place has behind the body. For
  // formats whose files must end with their last byte. Called after begin(), if at all.
  virtual void cut_behind() {}

  // Names the parts of the body before their bytes are written, in ascending order. May be called
  // again with parts behind the earlier ones, but not during a write(). The names are copied. Only
  // a store that keeps every part under a name of its own uses them. It drops bytes behind the last
  // part, and needs all bytes of a part written with the same KeptUntil. Throws InvalidArgument if
  // a part is too large for the store.
  virtual void announce(std::span<const NamedRange> parts) { (void)parts; }

  // Returns whether write_head() takes a head of `size` bytes instead of the reserved ones after
  // `more` bytes of the body. Depends on what has been written so far.
  virtual bool can_resize_head(std::uint64_t size, std::uint64_t more) const {
    (void)size, (void)more;
    return false;
  }

  // Writes the head: as many bytes as were reserved, or as many as can_resize_head() allows now. A
  // head of another size moves the body. Not concurrently with write(). May be called again only if
  // in_place(), with a head that is no shorter than the one before.
  virtual void write_head(ConstBytes head, Cancel& cancel) = 0;

  // Writes the pieces one after another, from `offset` of the body on. `kept` lets a sink that
  // sends later refer to the caller's memory instead of copying it. Safe for concurrent use by
  // multiple threads, in any order, unless sequential(). No byte may be written twice.
  virtual void write(std::uint64_t offset, std::span<const ConstBytes> pieces, KeptUntil kept,
                     Cancel& cancel) = 0;

  // Returns the regular file that is overwritten in place, which must not be read meanwhile; null
  // if the target is replaced or is not a regular file.
  virtual std::optional<FileIdentity> overwritten() const { return std::nullopt; }

  // Returns whether others can see the target while it is written.
  virtual bool in_place() const { return false; }

  // Does what takes long in finish(), so that the target only has to appear. May be called once,
  // right before finish(), with the same size.
  virtual void prepare(std::uint64_t body_size, Cancel& cancel) { (void)body_size, (void)cancel; }

  // Completes the file, whose body has `body_size` bytes, and makes it appear under the target's
  // name. Called once, after all writes.
  virtual void finish(std::uint64_t body_size, Cancel& cancel) = 0;

  // Drops everything and leaves the target as it was; a target that is written in place keeps what
  // was written. Does nothing after finish() or a second time.
  virtual void abort() noexcept = 0;

  // Returns the URI for messages: without secrets, quoted.
  virtual const std::string& label() const = 0;
};

}  // namespace tensorizer
