#include "format/safetensors/layout.h"

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "codec/hmac.h"
#include "format/name.h"
#include "format/name_table.h"
#include "format/safetensors/dtype.h"
#include "format/safetensors/header.h"
#include "format/safetensors/json_string.h"
#include "format/safetensors/list_digest.h"

namespace tensorizer {

namespace {

// Returns the size of a prefix with so much JSON.
constexpr std::uint64_t padded_size(std::uint64_t json) noexcept {
  return align_up(kSafetensorsLength + json, 8);
}

void put_tensor(std::string& out, const PlacedTensor& tensor) {
  put_json_string(out, tensor.spec.name);
  out += R"(:{"dtype":")";
  out += safetensors_dtype(tensor.spec.dtype);
  out += R"(","shape":[)";
  const std::vector<std::int64_t>& shape = tensor.spec.shape;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(stored_dimension(tensor.spec.dtype, shape, i));
  }
  out += R"(],"data_offsets":[)" + std::to_string(tensor.data_offset()) + "," +
         std::to_string(tensor.end()) + "]}";
}

// Returns the size of the JSON of a tensor, with a comma.
std::uint64_t entry_size(const PlacedTensor& tensor) {
  std::string text;
  put_tensor(text, tensor);
  return text.size() + 1;
}

std::string begin_metadata(const FileKind& kind) {
  std::string out;
  const bool sha256 = kind.header.hashes.sha256;
  if (kind.metadata.empty() && !kind.empty_metadata && !sha256) return out;
  put_json_string(out, kSafetensorsMetadata);
  out += ":{";
  for (const auto& [key, value] : kind.metadata) {
    put_json_string(out, key);
    out += ':';
    put_json_string(out, value);
    out += ',';
  }
  if (sha256) {
    put_json_string(out, kDigestsKey);
    out += ":\"";
  } else if (!kind.metadata.empty()) {
    out.pop_back();
  }
  return out;
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(FileKind kind)
    : Layout(std::move(kind)), metadata_(begin_metadata(kind_)) {}

void SafetensorsLayout::check(const TensorSpec& spec) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::InvalidArgument,
                "tensor " + quote(spec.name) + " cannot be saved in a safetensors file: " + why);
  };
  if (!is_utf8(spec.name)) refuse("its name is not UTF-8");
  if (spec.name == kSafetensorsMetadata) refuse("the format uses this name for its metadata");
  if (is_nested(spec.name)) refuse("it is nested, and the format has only plain names");
  if (spec.meta) refuse("it is on the meta device and has no data");
  if (safetensors_dtype(spec.dtype).empty()) {
    refuse("the format has no type for " + std::string(dtype_info(spec.dtype).torch_name));
  }
  if (spec.shape.empty() && elements_in_one(spec.dtype) > 1) {
    refuse("without dimensions, the format has no shape for a packed type");
  }
  if (spec.shape.size() > kMostSafetensorsDimensions) {
    refuse("it has " + std::to_string(spec.shape.size()) + " dimensions, and at most " +
           std::to_string(kMostSafetensorsDimensions) + " are read");
  }
}

void SafetensorsLayout::add(TensorSpec spec) {
  check(spec);
  place(std::move(spec), 0);
  entries_size_ += entry_size(tensors_.back());
}

void SafetensorsLayout::check_size() const {
  const std::uint64_t size = padded_size(json_size()) - kSafetensorsLength;
  if (size <= kMostSafetensorsHeader) return;
  throw Error(ErrorKind::InvalidArgument,
              "the header of the safetensors file would have " + std::to_string(size) +
                  " bytes, and the format allows " + std::to_string(kMostSafetensorsHeader) +
                  ": save fewer tensors in one file");
}

void SafetensorsLayout::remove_from(std::size_t first) {
  for (const PlacedTensor& tensor : tensors().subspan(first)) entries_size_ -= entry_size(tensor);
  Layout::remove_from(first);
}

void SafetensorsLayout::check_names(Cancel& cancel) const {
  check_saved_names(placed_names(), cancel);
}

std::uint64_t SafetensorsLayout::json_size() const noexcept {
  std::uint64_t inside = entries_size_;
  if (!metadata_.empty()) inside += metadata_.size() + 2;  // with a brace and a comma
  if (has_digests()) inside += 2 * kSha256Size * (tensors_.size() + 1) + 1;  // with the quotes
  // The braces, and what is between them without the last comma.
  return 2 + inside - (inside > 0 ? 1 : 0);
}

std::uint64_t SafetensorsLayout::prefix_size() const {
  check_size();
  return padded_size(json_size());
}

std::uint64_t SafetensorsLayout::largest_prefix() const noexcept {
  return kSafetensorsLength + kMostSafetensorsHeader;
}

std::vector<std::byte> SafetensorsLayout::prefix(std::uint64_t, std::uint64_t size) const {
  std::string json = "{" + metadata_;
  json.reserve(size);
  if (has_digests()) {
    ListDigest list;
    for (const PlacedTensor& tensor : tensors_) {
      const TensorSpec& spec = tensor.spec;
      list.add(spec.name, spec.dtype, spec.shape, tensor.data_digest);
      json += to_hex(tensor.data_digest);
    }
    json += to_hex(list.finish()) + '"';
  }
  if (!metadata_.empty()) json += "},";
  for (const PlacedTensor& tensor : tensors_) {
    put_tensor(json, tensor);
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.resize(size - kSafetensorsLength, ' ');
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  ByteWriter out(bytes);
  out.put(static_cast<std::uint64_t>(json.size()));
  out.put_bytes(as_bytes(json));
  return bytes;
}

}  // namespace tensorizer
