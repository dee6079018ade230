#include "format/layout.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "format/name_table.h"
#include "format/shape.h"

namespace tensorizer {

namespace {

// As much as the largest header of a safetensors file. An index may be that much longer than its
// entries.
constexpr std::uint64_t kMostMetadata = 100'000'000;

}  // namespace

bool TensorSpec::long_dimensions() const noexcept {
  return std::any_of(shape.begin(), shape.end(), [](std::int64_t dimension) {
    return dimension > std::numeric_limits<std::uint32_t>::max();
  });
}

std::uint64_t TensorSpec::data_size() const noexcept {
  // A layout refuses a shape that has no size.
  return meta ? 0 : byte_size(shape, dtype_info(dtype).size).value_or(0);
}

void Layout::check(const TensorSpec& spec) const {
  if (!byte_size(spec.shape, dtype_info(spec.dtype).size)) {
    throw Error(ErrorKind::InvalidArgument,
                "tensor " + quote(spec.name) + " cannot be saved: its shape has too many elements");
  }
  check_in_format(spec);
}

void Layout::tie(const TensorSpec& spec, std::uint32_t tensor) {
  check(spec);
  ties_.push_back({spec.name, spec.type, spec.module_index, tensor,
                   static_cast<std::uint32_t>(tensors_.size() + ties_.size())});
}

void Layout::place(TensorSpec spec, std::uint64_t header_size) {
  PlacedTensor placed{std::move(spec), end(), header_size};
  placed.first_chunk = chunk_digests_.size();
  if (kind_.chunk_size > 0) {
    const std::uint64_t chunks = chunk_count(placed.spec.data_size(), kind_.chunk_size);
    if (chunks > kMostChunks - chunk_digests_.size()) {
      throw Error(ErrorKind::InvalidArgument,
                  "the tensors have more than " + std::to_string(kMostChunks) + " chunks of " +
                      std::to_string(kind_.chunk_size) +
                      " bytes, whose digests one file can list: set a larger 'digest_chunk'");
    }
    chunk_digests_.resize(chunk_digests_.size() + chunks);
  }
  tensors_.push_back(std::move(placed));
}

void check_metadata(Metadata& metadata, Cancel& cancel) {
  std::erase_if(metadata, [](const auto& pair) {
    return pair.first == kDigestsKey || pair.first == kChunkDigestsKey;
  });
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument, "the metadata cannot be saved: " + why);
  };
  std::uint64_t size = 0;
  for (const auto& [key, value] : metadata) size += key.size() + value.size();
  if (size > kMostMetadata) {
    refuse("it has " + std::to_string(size) + " bytes, and at most " +
           std::to_string(kMostMetadata) + " are allowed");
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key)) refuse("the key " + quote(key) + " is not UTF-8");
    if (!is_utf8(value)) refuse("the value of " + quote(key) + " is not UTF-8");
  }
  if (const auto key = repeated_key(metadata, cancel)) {
    refuse("the key " + quote(*key) + " appears twice");
  }
}

void Layout::remove_from(std::size_t first) {
  if (first < tensors_.size()) chunk_digests_.resize(tensors_[first].first_chunk);
  tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(first), tensors_.end());
  std::erase_if(ties_, [&](const SavedTie& tie) { return tie.tensor >= first; });
}

std::vector<std::string_view> Layout::placed_names() const {
  std::vector<std::string_view> names;
  names.reserve(tensors_.size() + ties_.size());
  for (const PlacedTensor& tensor : tensors_) names.push_back(tensor.spec.name);
  for (const SavedTie& tie : ties_) names.push_back(tie.name);
  return names;
}

}  // namespace tensorizer
