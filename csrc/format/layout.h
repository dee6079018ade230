// The layout of a file that is being written, whatever its format: places its tensors, and makes
// the prefix in front of them, which lists them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "codec/argon2.h"
#include "codec/secret_bytes.h"
#include "format/chunks.h"
#include "format/dtype.h"
#include "format/hashes.h"
#include "tensorizer_ops/options.h"
#include "tensorizer_ops/stored_tensor.h"

namespace tensorizer {

// Keys that the metadata of a user never has. In a safetensors file, the value of the first is the
// SHA-256 of each tensor's data, as hex digits in the order of the header, and a last one over this
// list. That of the second begins with the size of chunks and a colon; the SHA-256 of all chunks
// follow, and a last one.
inline constexpr std::string_view kDigestsKey = "tensorizer_ops.sha256";
inline constexpr std::string_view kChunkDigestsKey = "tensorizer_ops.sha256.chunks";

// A tensor to be saved.
struct TensorSpec {
  std::string name;  // as stored
  TensorType type = TensorType::StateDictEntry;
  std::uint16_t module_index = 0;
  DType dtype = DType::UInt8;
  std::vector<std::int64_t> shape;
  bool meta = false;

  // Returns whether a dimension needs more than 32 bits.
  bool long_dimensions() const noexcept;
  // Returns the number of bytes that are stored: 0 for a meta tensor.
  std::uint64_t data_size() const noexcept;
};

// How a file that is written is encrypted.
struct Encryption {
  SharedSecret key;
  std::optional<KeyDerivation> derivation;  // how the key was derived; null if it was not
};

// The properties that the headers of all tensors in a file share.
struct HeaderKind {
  HashSet hashes{};
  std::optional<Encryption> encryption;
};

// The properties of a file that is written.
struct FileKind {
  HeaderKind header;
  bool data_digests = false;  // whether it has a list of the digests of its tensors' data
  Metadata metadata{};
  // Whether a file whose format can hold that has metadata even if there is no text in it.
  bool empty_metadata = false;
  bool share = false;  // whether several names may have the same data
  // The size of the chunks whose digests it lists, and their hash; 0 if it lists none.
  std::uint64_t chunk_size = 0;
  Hash chunk_hash = Hash::Sha256;
};

// Throws Error(InvalidArgument) if a file cannot hold the metadata: if a text is not UTF-8, a key
// appears twice, or all of it is too large. Takes the keys above out, which come from programs that
// copy the metadata of a file.
void check_metadata(Metadata& metadata, Cancel& cancel);

// A tensor and its offsets behind the prefix.
struct PlacedTensor {
  TensorSpec spec;
  std::uint64_t header_offset;  // from the end of the prefix
  std::uint64_t header_size;    // 0 if the format has no headers in front of its tensors
  // The digests that go into the prefix. They must be set before it is made.
  Sha256Digest header_digest{};
  Sha256Digest data_digest{};
  std::size_t first_chunk = 0;  // its number among the chunks of all tensors

  std::uint64_t data_offset() const noexcept { return header_offset + header_size; }
  std::uint64_t end() const noexcept { return data_offset() + spec.data_size(); }
};

// One more name of a placed tensor.
struct SavedTie {
  std::string name;  // as stored
  TensorType type;
  std::uint16_t module_index;
  std::uint32_t tensor;  // its number in the layout
  std::uint32_t number;  // of this name among all names
};

// Places tensors one behind the other. Not thread-safe unless a method says so.
class Layout {
 public:
  virtual ~Layout() = default;

  // Throws Error(InvalidArgument) for a tensor that the format cannot hold.
  void check(const TensorSpec& spec) const;
  // Places a tensor behind the last one. Throws what check() throws.
  virtual void add(TensorSpec spec) = 0;
  // Gives a tensor, which may be added later, one more name: that of `spec`, with its type and
  // module index. Names are numbered in the order of these calls and those of add(). The kind must
  // allow it. Throws what check() throws.
  void tie(const TensorSpec& spec, std::uint32_t tensor);
  // Throws Error(InvalidArgument) if the format allows no prefix that lists all of the tensors.
  virtual void check_size() const {}
  // Takes back the tensors from number `first` on, and their ties.
  virtual void remove_from(std::size_t first);

  std::span<const PlacedTensor> tensors() const noexcept { return tensors_; }
  const FileKind& kind() const noexcept { return kind_; }
  // Returns whether the prefix has digests. It can then be made only when all headers and data have
  // been written or digested.
  virtual bool has_digests() const noexcept = 0;
  // Sets a digest for the prefix. Thread-safe for different tensors, as is the next.
  void set_header_digest(std::size_t tensor, const Sha256Digest& digest) noexcept {
    tensors_[tensor].header_digest = digest;
  }
  void set_data_digest(std::size_t tensor, const Digests& digests) noexcept {
    tensors_[tensor].data_digest = digests[Hash::Sha256].value_or(Digest{});
  }
  // Returns the digests of a tensor's chunks, to be set; none if the file lists none. Thread-safe
  // for different chunks.
  std::span<Digest> chunk_digests(std::size_t tensor) noexcept {
    const std::size_t first = tensors_[tensor].first_chunk;
    const bool last = tensor + 1 == tensors_.size();
    const std::size_t end = last ? chunk_digests_.size() : tensors_[tensor + 1].first_chunk;
    return std::span(chunk_digests_).subspan(first, end - first);
  }

  // Returns the bytes that end a file, behind the last tensor.
  virtual ConstBytes terminator() const noexcept = 0;
  // Returns the end of the last tensor, which is the offset of the terminator.
  std::uint64_t end() const noexcept { return tensors_.empty() ? 0 : tensors_.back().end(); }
  // Returns the size of the file without its prefix.
  std::uint64_t file_size() const noexcept { return end() + terminator().size(); }

  // Throws Error(InvalidArgument) if two names cannot be in one file.
  virtual void check_names(Cancel& cancel) const = 0;

  // Returns the size that the prefix needs. Throws what check_size() throws.
  virtual std::uint64_t prefix_size() const = 0;
  // Returns the size that a prefix may have at most.
  virtual std::uint64_t largest_prefix() const noexcept {
    return std::numeric_limits<std::uint64_t>::max();
  }
  // Returns the prefix of a file that begins at `start`, padded to `size`, which must be at least
  // prefix_size() and at most largest_prefix().
  virtual std::vector<std::byte> prefix(std::uint64_t start, std::uint64_t size) const = 0;

 protected:
  explicit Layout(FileKind kind) : kind_(std::move(kind)) {}
  Layout(Layout&&) = default;

  // Implements check() for a tensor whose shape is one that torch can hold.
  virtual void check_in_format(const TensorSpec& spec) const = 0;

  // Returns the names of the tensors and then of the ties, which belong to them.
  std::vector<std::string_view> placed_names() const;
  // Appends a tensor, with a header of this size in front of its data.
  void place(TensorSpec spec, std::uint64_t header_size);

  const FileKind kind_;
  std::vector<PlacedTensor> tensors_;
  std::vector<SavedTie> ties_;
  std::vector<Digest> chunk_digests_;  // of all tensors
};

}  // namespace tensorizer
