#include "engine/file_digest.h"

#include <memory>
#include <vector>

#include "codec/hmac.h"
#include "engine/load.h"
#include "format/model_digest.h"

namespace tensorizer {

std::string file_digest(OpenFile& file, int threads, Progress& progress, Cancel& cancel) {
  const std::vector<LoadItem> items = file.all_items();
  std::vector<Sha256Digest> found(items.size());
  const ExpectedDigests expected_digests{{}, found};
  LoadSettings settings;
  settings.verify = Verify::All;
  settings.threads = threads;
  settings.memory_ceiling = file.options().memory_ceiling;
  settings.expected_digests = &expected_digests;
  settings.keys = file.keys();
  const std::shared_ptr<Source> source = file.source_for(items, threads > 1, cancel);
  // The other half of the memory is for bytes that are read ahead.
  if (source.get() != &file.source()) settings.memory_ceiling /= 2;
  load(*source, file.catalogue(), items, settings, progress, cancel);
  file.source().confirm(cancel);
  return to_hex(model_digest(file.catalogue(), std::as_bytes(std::span(found)), cancel));
}

}  // namespace tensorizer
