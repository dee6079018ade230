#include "engine/open/read_catalogue.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/move/workers.h"
#include "engine/open/read_index.h"
#include "engine/open/sharded_source.h"
#include "engine/read_arriving.h"
#include "format/other_formats.h"
#include "format/safetensors/header.h"
#include "format/safetensors/sharded_catalogue.h"
#include "format/safetensors/start.h"

namespace tensorizer {

namespace {

// Enough for the index of a few hundred tensors, so that one read is usually enough.
constexpr std::uint64_t kFirstRead = 64 << 10;

[[noreturn]] void refuse(ConstBytes first, const FileLocation& location) {
  if (first.empty()) {
    throw Error(ErrorKind::InvalidFormat,
                std::string(location.label) +
                    (location.start == 0
                         ? ": the file is empty"
                         : ": nothing is left to read at the current position of the file, " +
                               std::to_string(location.start) + ": go to its beginning first"));
  }
  const std::string_view text = as_text(first);
  const bool cut = first.size() < kSafetensorsStart;
  const OtherFormat other = other_format(first);
  throw Error(
      ErrorKind::InvalidFormat,
      std::string(location.label) + ": this is not a .tensors or safetensors file" +
          (cut ? ", or only the first " + std::to_string(first.size()) + " bytes of one" : "") +
          ": it starts with " + quote(text.substr(0, 4096), kFileMagic.size()) + " at offset " +
          std::to_string(location.start) +
          (other.name.empty() ? ""
                              : ", so it is probably " + std::string(other.name) + ": " +
                                    std::string(other.advice)));
}

// Returns whether a file that could be a safetensors file by its ninth byte is one of another
// format: the length of its header would be too large.
bool is_other(ConstBytes first) {
  return Cursor(first).take<std::uint64_t>() > kMostSafetensorsHeader &&
         !other_format(first).name.empty();
}

SafetensorsHeader read_safetensors(Source& source, std::vector<std::byte> bytes,
                                   std::optional<WholeFile>& whole, Cancel& cancel) {
  const SourceLocation location(source);
  const std::uint64_t size = kSafetensorsLength + safetensors_header_size(bytes, location);
  if (!read_on(source, source.start(), bytes, size, cancel)) {
    throw Error(ErrorKind::InvalidFormat,
                std::string(location.label) + ": the file is truncated: it ends at offset " +
                    std::to_string(source.start() + bytes.size()) + ", inside its header of " +
                    std::to_string(size - kSafetensorsLength) + " bytes");
  }
  bytes.resize(size);
  whole = whole_file(source, bytes);
  bytes.erase(bytes.begin(), bytes.begin() + kSafetensorsLength);
  return {std::move(bytes), location, cancel};
}

// `whole`: set to the file, if it is a safetensors file and a server keeps its digest.
std::unique_ptr<Catalogue> read_file(Source& source, FileKeys* keys,
                                     std::optional<WholeFile>& whole, Cancel& cancel) {
  const SourceLocation location(source);
  std::vector<std::byte> first;
  // A sequential source must not be read past the index, however short that is.
  read_on(source, source.start(), first, source.sequential() ? kSafetensorsStart : kFirstRead,
          cancel);
  std::unique_ptr<Catalogue> catalogue;
  if (!first.empty() && is_tensors_file(first)) {
    catalogue = std::make_unique<Index>(read_index(source, std::move(first), keys, cancel));
  } else if (is_shard_index(first)) {
    throw Error(ErrorKind::InvalidFormat,
                std::string(location.label) +
                    ": this looks like the index of a sharded safetensors model, which is loaded "
                    "by its path, from s3://, and from http:// servers that support ranges");
  } else if (is_safetensors(first) && !is_other(first)) {
    catalogue = std::make_unique<SafetensorsHeader>(
        read_safetensors(source, std::move(first), whole, cancel));
  } else {
    refuse(first, location);
  }
  return catalogue;
}

std::unique_ptr<Catalogue> read_shards(ShardedSource& source,
                                       std::span<std::optional<WholeFile>> whole, Cancel& cancel) {
  std::vector<CataloguedShard> shards(source.shard_count());
  for_each_number(shards.size(), waiting_workers(source.hints(0, 1)), cancel, [&](std::size_t i) {
    Source& file = source.shard(i);
    const std::uint64_t begin = source.begin_of(i);
    shards[i] = {read_file(file, nullptr, whole[i], cancel), begin};
    if (whole[i]) whole[i]->move_to(begin);
    if (shards[i].catalogue->info().format == Format::Safetensors) return;
    throw Error(ErrorKind::InvalidFormat,
                file.label() +
                    ": this is a .tensors file, and the shards of a model must be "
                    "safetensors files");
  });
  std::vector<const Catalogue*> catalogues;
  for (const CataloguedShard& shard : shards) catalogues.push_back(shard.catalogue.get());
  source.index().check(catalogues, SourceLocation(source), cancel);
  return std::make_unique<ShardedCatalogue>(std::move(shards));
}

}  // namespace

std::unique_ptr<Catalogue> read_catalogue(Source& source, FileKeys* keys, Cancel& cancel,
                                          std::vector<WholeFile>* whole) {
  auto* const sharded = dynamic_cast<ShardedSource*>(&source);
  std::vector<std::optional<WholeFile>> files(sharded != nullptr ? sharded->shard_count() : 1);
  std::unique_ptr<Catalogue> catalogue = sharded != nullptr
                                             ? read_shards(*sharded, files, cancel)
                                             : read_file(source, keys, files[0], cancel);
  const auto is_known = [](const std::optional<WholeFile>& file) { return file.has_value(); };
  if (whole != nullptr && std::ranges::all_of(files, is_known)) {
    for (const std::optional<WholeFile>& file : files) whole->push_back(*file);
  }
  if (keys != nullptr && !catalogue->encrypted()) {
    throw Error(ErrorKind::Crypto,
                source.label() + ": a key was given, and the file is not encrypted");
  }
  return catalogue;
}

}  // namespace tensorizer
