#include "engine/rewrite/file_digest.h"

#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "engine/load/load.h"

namespace tensorizer {

namespace {

// Loads all tensors to nowhere.
void read_all(OpenFile& file, LoadSettings settings, Progress& progress, Cancel& cancel) {
  const std::vector<LoadItem> items = file.all_items();
  settings.memory_ceiling = file.options().memory_ceiling;
  settings.keys = file.keys();
  if (const auto whole = file.source_of_whole(items, settings.verify)) {
    settings.verify = Verify::None;
    load(*whole, file.catalogue(), items, settings, progress, cancel);
    return whole->check(cancel);
  }
  const std::shared_ptr<Source> source = file.source_for(items, settings.threads > 1, cancel);
  // The other half of the memory is for bytes that are read ahead.
  if (source.get() != &file.source()) settings.memory_ceiling /= 2;
  load(*source, file.catalogue(), items, settings, progress, cancel);
}

}  // namespace

std::string file_digest(OpenFile& file, const DigestRequest& request, Progress& progress,
                        Cancel& cancel) {
  if (request.listed && !DataDigests::are_listed(file.catalogue(), request.version)) {
    throw Error(ErrorKind::InvalidArgument,
                file.source().label() + ": the file does not list the digests that its digest of " +
                    "version " + std::to_string(static_cast<int>(request.version)) +
                    " is made of: " + how_to_list(request.version) +
                    ", or read the data, without 'listed'");
  }
  DataDigests digests(file.catalogue(), request.version, request.listed, file.source().label());
  if (!request.listed) {
    LoadSettings settings;
    settings.verify = Verify::All;
    settings.threads = request.threads;
    settings.data_digests = &digests;
    read_all(file, settings, progress, cancel);
  }
  file.source().confirm(cancel);
  return to_text(digests.model_digest(cancel));
}

void verify_file(OpenFile& file, Verify verify, int threads, Progress& progress, Cancel& cancel) {
  LoadSettings settings;
  settings.verify = file.checked(verify);
  settings.threads = threads;
  settings.names_all_damage = true;
  std::optional<DataDigests> pinned;
  if (file.options().digest) settings.data_digests = &pinned.emplace(file.pinned_digests());
  if (settings.verify == Verify::None && !pinned && !file.catalogue().encrypted()) {
    throw Error(ErrorKind::InvalidArgument,
                "verify is 'none', which compares nothing: give 'crc32' or 'all'");
  }
  read_all(file, settings, progress, cancel);
  file.source().confirm(cancel);
  // A list of digests in the file was checked when the file was opened.
  if (pinned && !pinned->listed()) file.check_digest(*pinned, cancel);
}

}  // namespace tensorizer
