#include "format/safetensors/layout.h"

#include <limits>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json_string.h"
#include "base/utf8.h"
#include "format/name.h"
#include "format/name_table.h"
#include "format/safetensors/digest_list.h"
#include "format/safetensors/dtype.h"
#include "format/safetensors/header.h"

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

bool has_lists(const FileKind& kind) {
  return kind.header.hashes.has(Hash::Sha256) || kind.chunk_size > 0;
}

std::string begin_metadata(const FileKind& kind) {
  std::string out;
  if (kind.metadata.empty() && !kind.empty_metadata && !has_lists(kind)) return out;
  put_json_string(out, kSafetensorsMetadata);
  out += ":{";
  for (const auto& [key, value] : kind.metadata) {
    put_json_string(out, key);
    out += ':';
    put_json_string(out, value);
    out += ',';
  }
  if (!kind.metadata.empty() && !has_lists(kind)) out.pop_back();
  return out;
}

// Returns the size of the text of a list with its key and quotes.
std::uint64_t member_size(std::string_view key, std::uint64_t chunk_size, std::size_t digests) {
  return key.size() + std::string_view(R"("":"")").size() + digest_list_size(chunk_size, digests);
}

}  // namespace

SafetensorsLayout::SafetensorsLayout(FileKind kind)
    : Layout(std::move(kind)), metadata_(begin_metadata(kind_)) {}

void SafetensorsLayout::check_in_format(const TensorSpec& spec) const {
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
  if (const std::int64_t packed = elements_in_one(spec.dtype); packed > 1) {
    if (spec.shape.empty()) {
      refuse("without dimensions, the format has no shape for a packed type");
    }
    if (spec.shape.back() > std::numeric_limits<std::int64_t>::max() / packed) {
      refuse("a dimension is too large");
    }
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
                  ": save fewer tensors in one file" +
                  (kind_.chunk_size > 0 ? ", or set a larger 'digest_chunk'" : ""));
}

void SafetensorsLayout::remove_from(std::size_t first) {
  for (const PlacedTensor& tensor : tensors().subspan(first)) entries_size_ -= entry_size(tensor);
  Layout::remove_from(first);
}

void SafetensorsLayout::check_names(Cancel& cancel) const {
  check_saved_names(placed_names(), cancel);
}

std::uint64_t SafetensorsLayout::json_size() const {
  std::uint64_t inside = entries_size_;
  if (!metadata_.empty())
    inside += metadata_.size() + lists_size() + 2;  // with a brace and a comma
  // The braces, and what is between them without the last comma.
  return 2 + inside - (inside > 0 ? 1 : 0);
}

std::uint64_t SafetensorsLayout::lists_size() const {
  const bool tensors = kind_.header.hashes.has(Hash::Sha256);
  const bool chunks = kind_.chunk_size > 0;
  return (tensors ? member_size(kDigestsKey, 0, tensors_.size()) : 0) +
         (chunks ? member_size(kChunkDigestsKey, kind_.chunk_size, chunk_digests_.size()) : 0) +
         (tensors && chunks ? 1 : 0);  // the comma
}

void SafetensorsLayout::put_list(std::string& json, std::string_view key,
                                 std::uint64_t chunk_size) const {
  DigestList list;
  list.chunk_size = chunk_size;
  list.digests.reserve(kSha256Size * (chunk_size > 0 ? chunk_digests_.size() : tensors_.size()));
  TensorsDigest tensors;
  for (const PlacedTensor& tensor : tensors_) {
    const TensorSpec& spec = tensor.spec;
    tensors.add(spec.name, spec.dtype, spec.shape);
    const std::size_t chunks = chunk_size > 0 ? chunk_count(spec.data_size(), chunk_size) : 0;
    const ConstBytes digests =
        chunk_size > 0
            ? std::as_bytes(std::span(chunk_digests_).subspan(tensor.first_chunk, chunks))
            : ConstBytes(tensor.data_digest);
    list.digests.insert(list.digests.end(), digests.begin(), digests.end());
  }
  list.tensors = tensors.finish();
  json += '"' + std::string(key) + R"(":")" + to_text(list) + '"';
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
  if (kind_.header.hashes.has(Hash::Sha256)) put_list(json, kDigestsKey, 0);
  if (kind_.header.hashes.has(Hash::Sha256) && kind_.chunk_size > 0) json += ',';
  if (kind_.chunk_size > 0) put_list(json, kChunkDigestsKey, kind_.chunk_size);
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
