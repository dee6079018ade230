#include "format/tensors/layout.h"

#include <algorithm>

#include "base/error.h"
#include "format/name.h"
#include "format/tensors/frame.h"
#include "format/tensors/records.h"
#include "format/tensors/tensor_header.h"

namespace tensorizer {

namespace {

// Returns the dtype as the index stores it: only the numpy part for an empty tensor, because
// releases of the format's first implementation cannot open an index with an empty tensor of an
// opaque dtype.
std::string index_dtype(const TensorSpec& spec) {
  return spec.data_size() == 0 ? std::string(dtype_info(spec.dtype).numpy)
                               : stored_dtype(spec.dtype);
}

// Returns the size of a tensor's entry in the index, without its version.
std::uint64_t entry_size(const TensorSpec& spec) {
  return sizeof(std::uint16_t) + spec.name.size() + 1 + 1 + index_dtype(spec).size() + 1 +
         spec.shape.size() * (spec.long_dimensions() ? 8 : 4) + 3 * sizeof(std::uint64_t);
}

std::uint32_t lowest_version(std::span<const PlacedTensor> tensors, bool encrypted) {
  std::uint32_t version = encrypted ? kEncryptedVersion : kOldestVersion;
  for (const PlacedTensor& tensor : tensors) {
    if (tensor.spec.long_dimensions()) return kVersionWithLongDimensions;
    if (tensor.spec.meta) version = std::max(version, kVersionWithMeta);
    if (dtype_info(tensor.spec.dtype).opaque) version = std::max(version, kVersionWithOpaque);
  }
  return version;
}

}  // namespace

void TensorsLayout::check_in_format(const TensorSpec& spec) const { check_spec(spec); }

void TensorsLayout::add(TensorSpec spec) {
  check(spec);
  const std::uint64_t size = tensor_header_size(spec, kind_.header, base_ + end());
  place(std::move(spec), size);
  const TensorSpec& placed = tensors_.back().spec;
  entries_size_ += entry_size(placed);
  long_dimensions_ += placed.long_dimensions() ? 1 : 0;
}

void TensorsLayout::remove_from(std::size_t first) {
  for (const PlacedTensor& tensor : tensors().subspan(first)) {
    entries_size_ -= entry_size(tensor.spec);
    long_dimensions_ -= tensor.spec.long_dimensions() ? 1 : 0;
  }
  Layout::remove_from(first);
}

ConstBytes TensorsLayout::terminator() const noexcept {
  return {reinterpret_cast<const std::byte*>(&kTerminator), sizeof(kTerminator)};
}

void TensorsLayout::check_names(Cancel& cancel) const {
  const std::vector<std::string_view> names = placed_names();
  const NameConflict conflict = find_conflict(names, cancel);
  if (conflict.first == conflict.second) return;
  throw Error(ErrorKind::InvalidArgument, "tensor " + quote(names[conflict.second]) + " " +
                                              std::string(conflict.reason) + " " +
                                              quote(names[conflict.first]));
}

std::uint64_t TensorsLayout::prefix_size() const {
  std::uint64_t size = kFileHeaderSize + entries_size_;
  if (long_dimensions_ > 0) size += sizeof(std::uint32_t) * tensors_.size();  // versions
  size += records_size(kind_, tensors_.size(), chunk_digests_.size(), ties_);
  return align_up(size, kPrefixAlignment);
}

std::vector<std::byte> TensorsLayout::prefix(std::uint64_t start, std::uint64_t size) const {
  const bool versioned = long_dimensions_ > 0;
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  ByteWriter out(bytes);
  out.put_bytes(as_bytes(kFileMagic));
  const bool encrypted = kind_.header.encryption.has_value();
  const std::uint32_t version = lowest_version(tensors_, encrypted);
  out.put(version);
  // Version 3 means encrypted and needs no flag.
  const bool flagged = encrypted && version > kEncryptedVersion;
  out.put(static_cast<std::uint8_t>((flagged ? kEncryptedFlag : 0) |
                                    (versioned ? kLongDimensionsFlag : 0)));
  bytes.resize(bytes.size() + kFlagBytes - 1);
  std::uint64_t data_sizes = 0;
  for (const PlacedTensor& tensor : tensors_) data_sizes += tensor.spec.data_size();
  out.put(data_sizes);
  out.put(std::uint64_t{0});
  out.put(static_cast<std::uint64_t>(tensors_.size()));
  out.put(size - kFileHeaderSize);
  const std::uint64_t base = start + size;
  for (const PlacedTensor& tensor : tensors_) {
    const TensorSpec& spec = tensor.spec;
    const bool long_dimensions = spec.long_dimensions();
    if (versioned) out.put(long_dimensions ? kVersionWithLongDimensions : kOldestVersion);
    out.put_text<std::uint16_t>(spec.name);
    out.put(static_cast<std::uint8_t>(spec.type));
    out.put_text<std::uint8_t>(index_dtype(spec));
    out.put(static_cast<std::uint8_t>(spec.shape.size()));
    for (const std::int64_t dimension : spec.shape) {
      if (long_dimensions) {
        out.put(static_cast<std::uint64_t>(dimension));
      } else {
        out.put(static_cast<std::uint32_t>(dimension));
      }
    }
    out.put(base + tensor.header_offset);
    out.put(base + tensor.data_offset());
    out.put(spec.data_size());
  }
  put_records(bytes);
  bytes.resize(size);
  return bytes;
}

void TensorsLayout::put_records(std::vector<std::byte>& prefix) const {
  ByteWriter(prefix).put_bytes(as_bytes(kFrameMagic));
  std::vector<Sha256Digest> digests(tensors_.size());
  const auto all = [&](Sha256Digest PlacedTensor::* digest) {
    std::transform(tensors_.begin(), tensors_.end(), digests.begin(),
                   [&](const PlacedTensor& tensor) { return tensor.*digest; });
    return std::span<const Sha256Digest>(digests);
  };
  if (kind_.data_digests) put_data_digests(prefix, all(&PlacedTensor::data_digest));
  if (kind_.chunk_size > 0) {
    put_chunk_digests(prefix, kind_, all(&PlacedTensor::header_digest), chunk_digests_);
  }
  if (!kind_.metadata.empty()) put_metadata(prefix, kind_.metadata);
  if (!ties_.empty()) put_ties(prefix, ties_);
  if (kind_.header.encryption) {
    put_authentication(prefix, *kind_.header.encryption, all(&PlacedTensor::header_digest));
  } else {
    put_seal(prefix);
  }
}

}  // namespace tensorizer
