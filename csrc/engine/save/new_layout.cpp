#include "engine/save/new_layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/suggest.h"
#include "base/text.h"
#include "format/other_formats.h"
#include "format/safetensors/dtype.h"
#include "format/safetensors/layout.h"
#include "format/safetensors/shard_index.h"
#include "format/tensors/layout.h"
#include "format/tensors/records.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// Returns the ending of the name in a URI, with its dot and in lower case.
std::string ending_of(std::string_view uri) {
  const std::string_view name = uri.substr(uri.rfind('/') + 1);
  return lower_case(name.substr(std::min(name.rfind('.'), name.size())));
}

}  // namespace

Format format_of(std::string_view uri, std::optional<Format> asked) {
  if (asked) return *asked;
  uri = uri.substr(0, path_end(uri));
  if (uri.ends_with(kShardIndexSuffix)) {
    throw Error(ErrorKind::InvalidArgument,
                "a name that ends with '.safetensors.index.json' is that of an index, which a save "
                "to a name that ends with '.safetensors' and the option 'max_shard_size' writes");
  }
  constexpr std::string_view kSafetensors[] = {".safetensors"};
  const std::string ending = ending_of(uri);
  if (ending == kSafetensors[0]) return Format::Safetensors;
  if (is_ending_of_other_format(ending) || !did_you_mean(ending, kSafetensors).empty()) {
    throw Error(
        ErrorKind::InvalidArgument,
        "the name of the target ends with " + quote(ending) +
            ", and a save writes .tensors or safetensors files: let it end with .tensors or "
            ".safetensors, or set the option 'format'");
  }
  return Format::Tensors;
}

FileKind kind_in(Format format, FileKind asked, Cancel& cancel) {
  check_metadata(asked.metadata, cancel);
  const bool lists_chunks = format == Format::Safetensors ? asked.chunk_hash == Hash::Sha256
                                                          : lists_chunks_by(asked.chunk_hash);
  if (asked.chunk_size > 0 && !lists_chunks) {
    throw Error(ErrorKind::InvalidArgument,
                std::string("hashes asks for the ") + info_of(asked.chunk_hash).name +
                    " of chunks, which a file of this format does not list: use SHA-256");
  }
  if (format != Format::Safetensors) return asked;
  if (asked.header.encryption) {
    throw Error(
        ErrorKind::InvalidArgument,
        "a key was given, and a safetensors file cannot be encrypted: save a .tensors file");
  }
  if (asked.share) {
    throw Error(ErrorKind::InvalidArgument,
                "option 'share' is 'true', and a safetensors file stores the data of every name: "
                "save a .tensors file, or leave out all names but one of each tied tensor, as "
                "save_model() does");
  }
  HashSet& hashes = asked.header.hashes;
  if (hashes.has(Hash::Crc32) && !hashes.has(Hash::Sha256) && asked.chunk_size == 0) {
    throw Error(ErrorKind::InvalidArgument,
                "hashes is 'crc32', and a safetensors file stores no CRC32: use 'sha256', 'all' or "
                "'chunked', which store SHA-256");
  }
  // One list of digests serves as the hashes of the tensors and as the digests of their data.
  hashes.set(Hash::Crc32, false);
  if (std::exchange(asked.data_digests, false)) hashes.set(Hash::Sha256, true);
  return asked;
}

std::unique_ptr<Layout> new_layout(Format format, FileKind kind, std::uint64_t start) {
  if (format == Format::Safetensors) return std::make_unique<SafetensorsLayout>(std::move(kind));
  // The size of a prefix is a multiple of the alignment, so only its start matters.
  return std::make_unique<TensorsLayout>(std::move(kind), start);
}

bool comes_first_in_safetensors(const TensorSpec& a, const TensorSpec& b) {
  const int first = safetensors_rank(a.dtype);
  const int second = safetensors_rank(b.dtype);
  return first != second ? first > second : a.name < b.name;
}

}  // namespace tensorizer
