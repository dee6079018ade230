#include "engine/new_layout.h"

#include <utility>

#include "base/error.h"
#include "format/safetensors/dtype.h"
#include "format/safetensors/layout.h"
#include "format/tensors/layout.h"

namespace tensorizer {

namespace {

std::unique_ptr<Layout> safetensors_layout(FileKind kind) {
  if (kind.header.encryption) {
    throw Error(
        ErrorKind::InvalidArgument,
        "a key was given, and a safetensors file cannot be encrypted: save a .tensors file");
  }
  if (kind.header.hashes.crc32 && !kind.header.hashes.sha256) {
    throw Error(ErrorKind::InvalidArgument,
                "hashes is 'crc32', and a safetensors file stores no CRC32: use 'sha256' or 'all', "
                "which store SHA-256");
  }
  // One list of digests serves as the hashes of the tensors and as the digests of their data.
  kind.header.hashes.crc32 = false;
  if (std::exchange(kind.data_digests, false)) kind.header.hashes.sha256 = true;
  return std::make_unique<SafetensorsLayout>(std::move(kind));
}

}  // namespace

Format format_of(std::string_view uri) {
  // The path of a URL ends before its query.
  if (uri.find("://") != std::string_view::npos) uri = uri.substr(0, uri.find_first_of("?#"));
  return uri.ends_with(".safetensors") ? Format::Safetensors : Format::Tensors;
}

std::unique_ptr<Layout> new_layout(Format format, FileKind kind, std::uint64_t start,
                                   Cancel& cancel) {
  check_metadata(kind.metadata, cancel);
  if (format == Format::Safetensors) return safetensors_layout(std::move(kind));
  // The size of a prefix is a multiple of the alignment, so only its start matters.
  return std::make_unique<TensorsLayout>(std::move(kind), start);
}

bool comes_first_in_safetensors(const TensorSpec& a, const TensorSpec& b) {
  const int first = safetensors_rank(a.dtype);
  const int second = safetensors_rank(b.dtype);
  return first != second ? first > second : a.name < b.name;
}

}  // namespace tensorizer
