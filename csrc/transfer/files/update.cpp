#include "transfer/files/update.h"

#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/read_arriving.h"
#include "engine/rewrite/patched_source.h"
#include "io/places/open.h"
#include "transfer/files/rewrite.h"

namespace tensorizer {

namespace {

[[noreturn]] void refuse_update(OpenFile& file, const std::string& why) {
  throw Error(ErrorKind::InvalidArgument, file.source().label() + ": " + why);
}

// Returns the digests that a file has, going by its first tensor. Reads nothing ahead.
HashKinds hashes_of(OpenFile& file, Cancel& cancel) {
  HashKinds hashes{.chunked = true};
  if (file.names().empty()) return hashes;
  const Entry& first = file.entry(0);
  if (file.source().sequential() && first.header_size() > 0) {
    refuse_update(file, "it can be read only once, in order, which is not enough: copy it");
  }
  const SourceLocation location(file.source());
  file.catalogue().check_header_size(0, location);
  std::vector<std::byte> header;
  read_arriving(file.source(), first.header_offset, first.header_size(), header, cancel);
  const Digests digests = file.catalogue().details(0, header, location).digests;
  hashes.crc32 = digests[Hash::Crc32].has_value();
  hashes.sha256 = digests[Hash::Sha256].has_value();
  return hashes;
}

}  // namespace

Updated update(OpenFile& from, const std::string& to, int threads, Progress& progress,
               Cancel& cancel) {
  constexpr const char* kEncrypted =
      "it is encrypted, and every save of it has new nonces, so that no two have a chunk in "
      "common: copy it";
  const Catalogue& catalogue = from.catalogue();
  if (catalogue.encrypted()) refuse_update(from, kEncrypted);
  if (catalogue.chunk_digests().empty()) {
    refuse_update(from,
                  "it has no digests of chunks, which say what has changed: save it with "
                  "hashes=\"chunked\"");
  }
  RewriteRequest request{to, hashes_of(from, cancel), threads, {}};
  SaveOptions& options = request.options;
  options.digest_chunk = catalogue.chunk_digests().chunk_size();
  options.digests = !catalogue.data_digests().empty();
  options.format = catalogue.info().format;
  const LoadOptions opening;
  if (!is_local(to)) refuse_update(from, "an update replaces a local file, and its target is none");
  std::shared_ptr<Source> local;
  try {
    local = open_source(to, opening.source, cancel);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::NotFound) throw;
  }
  if (local == nullptr) {
    rewrite(from, from.source(), request, progress, cancel);
    return {progress.done, 0};
  }
  if (!local->identity()) {
    throw Error(ErrorKind::InvalidArgument,
                local->label() + " is no local file, which an update replaces");
  }
  OpenFile older(local, opening, cancel);
  if (older.catalogue().encrypted()) refuse_update(older, kEncrypted);
  PatchedSource source(from, older, threads, cancel);
  rewrite(from, source, request, progress, cancel);
  return {source.fetched(), source.kept()};
}

}  // namespace tensorizer
