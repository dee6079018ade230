#include "engine/rewrite/update.h"

#include <memory>

#include "base/error.h"
#include "engine/rewrite/patched_source.h"
#include "engine/rewrite/rewrite.h"
#include "io/places/open.h"

namespace tensorizer {

namespace {

// How large an older file may be that is read for what both have in common: so many bytes, or so
// many times as large as the newer file. Whoever made a larger one, which may be sparse, decides
// how long that takes.
constexpr std::uint64_t kAlwaysRead = 256 << 20;
constexpr std::uint64_t kMostOlder = 4;

[[noreturn]] void refuse_update(OpenFile& file, const std::string& why) {
  throw Error(ErrorKind::InvalidArgument, file.source().label() + ": " + why);
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
  if (from.source().sequential() && from.catalogue().info().format == Format::Tensors) {
    refuse_update(from, "it can be read only once, in order, which is not enough: copy it");
  }
  RewriteRequest request{to, from.hashes(cancel), threads, {}, {}, from.metadata()};
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
  const auto copy = [&]() -> Updated {
    Origin origin(from, from.source(), cancel);
    rewrite(from, origin, request, progress, cancel);
    return {progress.done, 0};
  };
  if (local == nullptr) return copy();
  if (!local->identity()) {
    throw Error(ErrorKind::InvalidArgument,
                local->label() + " is no local file, which an update replaces");
  }
  OpenFile older(local, opening, cancel);
  if (older.catalogue().encrypted()) refuse_update(older, kEncrypted);
  const std::uint64_t size = older.catalogue().end();
  if (size > kAlwaysRead && size / kMostOlder > catalogue.end()) return copy();
  const std::optional<std::string> version = local->version();
  PatchedSource source(from, older, threads, cancel);
  Origin origin(from, source, cancel);
  try {
    rewrite(from, origin, request, progress, cancel);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::HashMismatch || local->version() == version) throw;
    throw Error(ErrorKind::HashMismatch,
                local->label() + " has changed while it was updated: update it again");
  }
  return {source.fetched(), source.kept()};
}

}  // namespace tensorizer
