// The deltas of a FileReader.
#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/delta/changes_table.h"
#include "engine/delta/delta.h"
#include "engine/open/sharded_source.h"
#include "engine/rewrite/file_digest.h"
#include "io/places/open.h"
#include "transfer/files/apply_in_memory.h"
#include "transfer/files/file_reader_job.h"

namespace tensorizer {

namespace {

// Returns whether a model has this digest. Reads all of it, unless the digest is made of what it
// lists.
bool is_model(OpenFile& file, const ModelDigest& digest, bool listed, int threads, Cancel& cancel) {
  Progress progress;
  return file_digest(file, {digest.version, listed, threads}, progress, cancel) == to_text(digest);
}

// Returns the stored name and type of each tensor, and the first name of those that it is tied to.
// Those of a delta are of the model that it makes.
auto described(OpenFile& file) {
  const std::vector<NamedEntry> entries = all_names(file.catalogue());
  std::vector<std::string> names;
  for (const NamedEntry& named : entries) names.emplace_back(named.name);
  if (delta_ends(file)) names = DeltaNames(file).stored;
  std::map<std::uint32_t, std::string> first;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto [found, is_new] = first.try_emplace(entries[i].entry, names[i]);
    if (!is_new) found->second = std::min(found->second, names[i]);
  }
  std::map<std::string, std::pair<TensorType, std::string>> described;
  for (std::size_t i = 0; i < names.size(); ++i) {
    described[names[i]] = {entries[i].type, first[entries[i].entry]};
  }
  return described;
}

}  // namespace

bool FileReader::tells_the_same(FileReader& other) {
  const std::shared_ptr<OpenFile> one = file();
  const std::shared_ptr<OpenFile> two = other.file();
  if (without_delta(one->metadata()).value_or(Metadata()) != two->metadata().value_or(Metadata())) {
    return false;
  }
  const bool is_told = one->catalogue().info().format == Format::Safetensors ||
                       two->catalogue().info().format != Format::Safetensors;
  return !is_told || described(*one) == described(*two);
}

void FileReader::make_delta(FileReader& fresh, const std::string& to, HashKinds hashes,
                            const OptionList& options, std::int64_t threads) {
  RewriteRequest request{to, hashes, parse_threads(threads), parse_save_options(options)};
  const std::shared_ptr<OpenFile> older = file(Wants::AnyOrder);
  const std::shared_ptr<OpenFile> newer = fresh.file(Wants::AnyOrder);
  Job job(*this);
  tensorizer::make_delta(*older, *newer, std::move(request), job.progress, job.cancel);
}

bool FileReader::apply(FileReader& base, const std::optional<std::string>& to,
                       const std::optional<HashKinds>& hashes, const OptionList& options,
                       std::int64_t threads) {
  const std::shared_ptr<OpenFile> delta = file(Wants::AnyOrder);
  const std::shared_ptr<OpenFile> older = base.file(Wants::AnyOrder);
  RewriteRequest request{to.value_or(base.uri()), hashes.value_or(kUsualHashes),
                         parse_threads(threads), parse_save_options(options)};
  if (to) {
    Job job(*this);
    apply_delta(*delta, *older, std::move(request), job.progress, job.cancel);
    return true;
  }
  if (older->catalogue().encrypted() && request.options.key.empty()) {
    throw Error(ErrorKind::InvalidArgument,
                older->source().label() +
                    ": it is encrypted, and what replaces it would not be: give a key in the "
                    "options of the target, or a target");
  }
  if (dynamic_cast<const ShardedSource*>(&older->source()) != nullptr) {
    throw Error(ErrorKind::InvalidArgument,
                older->source().label() +
                    ": it is a model of several files, and what replaces it would be one: give a "
                    "target");
  }
  const DeltaEnds ends = need_delta(*delta);
  // The digests that the older file lists of itself say nothing of its bytes, which must be those
  // that somebody has signed.
  const bool is_believed = !older->source().signed_as() && !delta->source().signed_as();
  const bool is_fast =
      is_believed && DataDigests::are_listed(older->catalogue(), ends.target.version);
  const auto is_new = [&] {
    Job job(*this);
    return is_model(*older, ends.target, is_fast, request.threads, job.cancel);
  };
  if (is_fast && is_new()) return false;
  try {
    Job job(*this);
    if (!hashes) request.hashes = older->hashes(job.cancel);
    if (!request.options.format) request.options.format = older->catalogue().info().format;
    apply_delta(*delta, *older, request, job.progress, job.cancel);
  } catch (const Error& error) {
    if (is_fast || error.kind() != ErrorKind::InvalidArgument || !is_new()) throw;
    if (!is_believed && !tells_the_same(base)) {
      throw Error(ErrorKind::HashMismatch,
                  older->source().label() +
                      " has the tensors of the newer model already, but other metadata, names, "
                      "types or ties of tensors: make it anew from the whole model");
    }
    if (!is_believed && !is_own_file(base.uri(), older->source())) {
      throw Error(
          ErrorKind::PermissionDenied,
          older->source().label() +
              " belongs to another user, who may change it: copy it to apply a signed delta",
          EACCES);
    }
    return false;
  }
  return true;
}

bool FileReader::apply_in_memory(const std::vector<std::string>& names,
                                 const std::vector<at::Tensor>& tensors, std::int64_t threads) {
  const std::shared_ptr<OpenFile> delta = file(Wants::AnyOrder);
  Job job(*this);
  return tensorizer::apply_in_memory(*delta, names, tensors, parse_threads(threads), job.progress,
                                     job.cancel);
}

}  // namespace tensorizer
