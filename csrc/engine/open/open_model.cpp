#include "engine/open/open_model.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/redaction.h"
#include "base/text.h"
#include "engine/move/workers.h"
#include "engine/open/read_shard_index.h"
#include "engine/open/shard_names.h"
#include "engine/open/sharded_source.h"
#include "format/other_formats.h"
#include "format/safetensors/shard_index.h"
#include "io/missing.h"
#include "io/places/open.h"
#include "io/save_record.h"
#include "io/signed/open.h"
#include "io/uri.h"

namespace tensorizer {

namespace {

// The least and the most that the first request to a server brings of a shard, for its header.
constexpr std::uint64_t kLeastStart = 64 << 10;
constexpr std::uint64_t kMostStart = 1 << 20;

constexpr std::string_view kTensorsSuffix = ".tensors";

// The endings of files of models, besides those of other formats. A folder with such a name may
// have been put in the place of a file.
constexpr std::string_view kEndings[] = {kTensorsSuffix, kSingleSuffix, ".st", ".enc",
                                         ".model",       ".jinja",      ".py"};

// What servers may ignore at the end of a name.
constexpr std::string_view kIgnoredEnds{" ./\\\t\r\n\v\f\0", 10};

// What begins what they may ignore there: parameters, or a query that was encoded.
constexpr std::string_view kMarks = ";?#%";

// The names that a model has in a folder on a server, where no names can be listed. The first that
// is there is opened.
constexpr std::array<const char*, 3> kUsualNames{"model.tensors", "model.safetensors.index.json",
                                                 "model.safetensors"};

// How often a model is opened that others replace in the meantime.
constexpr int kMostTries = 16;

std::string_view without_ignored_end(std::string_view name) {
  return name.substr(0, name.find_last_not_of(kIgnoredEnds) + 1);  // npos + 1 is 0
}

// Returns how many files the model has of which this is one.
std::uint64_t files_beside(std::string_view file) {
  return files_of_model(file.substr(file.rfind('/') + 1));  // npos + 1 is 0
}

[[noreturn]] void refuse_parts(const std::string& folder, const std::string& file) {
  throw Error(ErrorKind::InvalidArgument,
              "the directory " + quote(folder, 4096) + " has " + quote(file, 4096) +
                  ", one of the " + std::to_string(files_beside(file)) +
                  " files of a model, and no *.safetensors.index.json, which lists them: get the "
                  "whole model, or wait until it is saved; or open one of its files by its name");
}

// Returns the names of the files that a save adds to a folder or replaces there, in which the model
// has the single file `single`.
std::vector<std::string> listed_beside(const std::string& single) {
  const std::size_t name = single.rfind('/') + 1;
  const std::string stem = single.substr(name, single.size() - name - kSingleSuffix.size());
  return SaveRecord::listed(single.substr(0, name), stem);
}

bool ends_as_file(std::string_view name) {
  const std::string_view ending = name.substr(std::min(name.rfind('.'), name.size()));
  return is_ending_of_other_format(ending) || std::ranges::find(kEndings, ending) != end(kEndings);
}

bool has_file(std::span<const std::string> names, std::string_view file) {
  return std::ranges::find(names, file.substr(file.rfind('/') + 1)) != names.end();
}

// Leaves out shards that belong to no model: a save has not published their index yet, or replaces
// them by the only other file.
void leave_out_shards(std::vector<std::string>& files) {
  const auto is_single = [](const std::string& file) { return files_beside(file) == 1; };
  if (files.size() < 2 || std::ranges::count_if(files, is_single) != 1) return;
  const std::string single = *std::ranges::find_if(files, is_single);
  const std::vector<std::string> listed = listed_beside(single);
  std::erase_if(files,
                [&](const std::string& file) { return file != single && has_file(listed, file); });
}

// Returns which one is the model of its folder: an index, or a single file of the same name. If a
// save replaces one by the other, that is the new one as soon as it is there.
std::string newer_of(const std::string& folder, const std::string& index, Cancel& cancel) {
  std::string single = index.substr(0, index.size() - kShardIndexSuffix.size());
  single += kSingleSuffix;
  const auto files = files_in(folder, kSingleSuffix, cancel);
  if (!files || std::ranges::find(*files, single) == files->end()) return index;
  const std::vector<std::string> listed = listed_beside(single);
  if (has_file(listed, single)) return index;
  if (has_file(listed, index)) return single;
  throw Error(ErrorKind::InvalidArgument,
              "the directory " + quote(folder, 4096) + " has a model in one file, " +
                  quote(single, 4096) + ", and one in several files of the same name, " +
                  quote(index, 4096) + ": open one of them by its name, and remove the other");
}

[[noreturn]] void refuse_several(const std::string& folder, const std::vector<std::string>& files,
                                 const std::string& kind) {
  for (const std::string& file : files) {
    if (!file.ends_with("/checkpoint.tensors")) continue;
    throw Error(ErrorKind::InvalidArgument, "the directory " + quote(folder, 4096) +
                                                " has a checkpoint of several ranks: load it with "
                                                "tensorizer_ops.checkpoint.load()");
  }
  throw Error(ErrorKind::InvalidArgument, "the directory " + quote(folder, 4096) + " has several " +
                                              kind + ": open one of them by its name, such as " +
                                              quote(files[0], 4096) + " or " +
                                              quote(files[1], 4096));
}

// Returns the file of the folder `uri` that is a model by itself, or `uri` if it is no folder.
std::string find_file(const std::string& uri, Cancel& cancel) {
  const std::optional<std::vector<std::string>> own = files_in(uri, kTensorsSuffix, cancel);
  if (!own) return uri;
  if (own->size() == 1) return own->front();
  std::optional<std::vector<std::string>> found = files_in(uri, kShardIndexSuffix, cancel);
  if (!found) return uri;
  if (found->size() == 1) return newer_of(uri, found->front(), cancel);
  const char* kind = "indexes of sharded models";
  if (found->empty()) {
    found = files_in(uri, kSingleSuffix, cancel);
    if (found) leave_out_shards(*found);
    const auto is_part = [](const std::string& file) { return files_beside(file) > 1; };
    if (found && !found->empty() && std::ranges::all_of(*found, is_part)) {
      refuse_parts(uri, found->front());
    }
    kind = "safetensors files and no *.safetensors.index.json";
  }
  if (!found || found->empty()) {
    if (own->size() > 1) refuse_several(uri, *own, ".tensors files");
    throw Error(ErrorKind::SystemError,
                "cannot open " + quote(uri, 4096) +
                    ": it is a directory, without a .tensors file and without a safetensors model",
                EISDIR, uri);
  }
  if (found->size() > 1) refuse_several(uri, *found, kind);
  return found->front();
}

// As find_file(), in a folder in which a save adds and removes files meanwhile.
std::string file_of(const std::string& uri, Cancel& cancel) {
  for (int tries = 1;; ++tries) {
    try {
      return find_file(uri, cancel);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::InvalidArgument || tries == kMostTries) throw;
    }
  }
}

class Opener {
 public:
  Opener(const std::string& uri, const LoadOptions& options, Cancel& cancel)
      : given_(uri),
        memory_ceiling_(options.memory_ceiling),
        shared_(options.source),
        cancel_(cancel) {}

  // A save may replace the model meanwhile. Then the folder is searched or the index read again.
  std::unique_ptr<Source> open() {
    for (int tries = 1;; ++tries) {
      // It would keep the signature of a model that has been replaced since.
      shared_.access = std::make_shared<SharedAccess>();
      uri_ = file_of(given_, cancel_);
      const bool is_signed = !options_from(shared_.given, &signed_options).trust.empty();
      if (is_signed && uri_ != given_) refuse_name_of_file(given_);
      std::unique_ptr<Source> file = open_file(tries == kMostTries);
      if (!file) continue;
      if (is_signed && uri_ != given_) {
        refuse_name_of_file(given_, signed_names(*shared_.access));
      }
      if (!is_index(*file)) return file;
      if (file->checks_at_end()) file->confirm(cancel_);
      ShardIndex index = read_shard_index(*file, cancel_);
      std::optional<Error> lost;
      std::vector<std::unique_ptr<Source>> shards = open_shards(*file, index, lost);
      if (is_current(*file, lost.has_value())) {
        if (lost) throw Error(*lost);
        return std::make_unique<ShardedSource>(*file, std::move(index), std::move(shards));
      }
      if (tries == kMostTries) {
        throw Error(ErrorKind::Unavailable,
                    file->label() + " has changed while its shards were opened: load it again");
      }
    }
  }

 private:
  // Returns null if a file is gone that was found in a folder, unless this is the last try.
  std::unique_ptr<Source> open_file(bool is_last) {
    try {
      return open_source(uri_, shared_, cancel_);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::NotFound && uri_ != given_ && !is_last) return nullptr;
      if (std::unique_ptr<Source> file = open_in_folder(error)) return file;
      if (error.kind() != ErrorKind::NotFound || !is_sharded()) throw;
      throw Error(error.kind(),
                  std::string(error.message()) + "; the model was saved in several files: load " +
                      quote(uri_ + ".index.json", 4096),
                  error.system_errno(), error.path());
    }
  }

  // Opens the model in the folder `given_` of a server, if opening that as a file ended with
  // `error`. Returns null if there is none.
  std::unique_ptr<Source> open_in_folder(const Error& error) {
    if (!may_not_exist(error) || is_local(given_) || !has_siblings(given_)) return nullptr;
    const std::size_t query = path_end(given_);
    std::string folder = given_.substr(0, query);
    while (folder.ends_with('/')) folder.pop_back();
    if (has_name_of_file(folder)) return nullptr;
    for (const char* name : kUsualNames) {
      std::string inside;
      try {
        inside = *sibling_uri(folder + "/-" + given_.substr(query), name, shared_.given);
      } catch (const Error&) {
        return nullptr;  // a signed URL is of one file only
      }
      try {
        std::unique_ptr<Source> file = open_source(inside, shared_, cancel_);
        uri_ = inside;
        return file;
      } catch (const Error& missing) {
        if (!may_not_exist(missing)) throw;
      }
    }
    return nullptr;
  }

  // Returns whether there is an index in place of a file of this machine that does not exist.
  bool is_sharded() {
    if (!is_local(uri_) || !uri_.ends_with(kSingleSuffix)) return false;
    try {
      open_source(uri_ + ".index.json", {}, cancel_);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  bool is_index(Source& file) {
    if (file.sequential() || !has_siblings(uri_)) return false;
    std::array<std::byte, kShardIndexStart> first{};
    const std::size_t size = file.read_up_to(0, first, cancel_);
    return is_shard_index(ConstBytes(first).first(size));
  }

  // `lost`: set to an error if a shard does not exist, and null otherwise.
  std::vector<std::unique_ptr<Source>> open_shards(Source& file, const ShardIndex& index,
                                                   std::optional<Error>& lost) {
    const std::size_t count = index.shards().size();
    SourceOptions options = shared_;
    options.begin = 0;
    // The bytes of the first requests are kept, and must fit the memory of a load.
    options.end = std::clamp(memory_ceiling_ / 2 / count, kLeastStart, kMostStart);
    std::vector<std::unique_ptr<Source>> shards(count);
    std::mutex mutex;
    const RedactedQuotes quotes(file);  // in the labels of the shards, which the file names
    for_each_number(count, waiting_workers(file.hints(0, 1)), cancel_, [&](std::size_t i) {
      if (const std::lock_guard lock(mutex); lost) return;
      const std::string name(index.shards()[i]);
      try {
        shards[i] = open_source(*sibling_uri(uri_, name, options.given), options, cancel_);
      } catch (const Error& error) {
        if (!may_not_exist(error)) throw;
        const std::lock_guard lock(mutex);
        lost.emplace(error.kind(),
                     std::string(error.message()) + "; the index " + file.label() +
                         " names it as one of its " + std::to_string(count) + " shards",
                     error.system_errno(), error.path());
      }
    });
    return shards;
  }

  // Returns whether the index is still this file. A save replaces it last, and its shards get names
  // that the older index does not use. So shards of two saves are never opened together. On web
  // servers, which no save replaces a model on, only an index that has `lost` a shard is asked for.
  bool is_current(const Source& file, bool lost) {
    if (!lost && !file_name_of(uri_)) return true;
    SourceOptions options = shared_;
    options.begin = 0;
    options.end = 1;
    try {
      return open_source(uri_, options, cancel_)->version() == file.version();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::NotFound) throw;
      return false;
    }
  }

  const std::string given_;
  std::string uri_;  // of the file that is opened
  const std::uint64_t memory_ceiling_;
  SourceOptions shared_;
  Cancel& cancel_;
};

}  // namespace

bool has_name_of_file(const std::string& uri) {
  const std::string path = lower_case(signed_path(uri));
  const std::string given = lower_case(uri.substr(0, path_end(uri)));
  if (path.ends_with('/') && !given.ends_with("%2f")) return false;
  const std::string_view whole = without_ignored_end(path);
  const std::string_view name = whole.substr(whole.rfind('/') + 1);  // npos + 1 is 0
  const std::string_view start = without_ignored_end(name.substr(0, name.find_first_of(kMarks)));
  return ends_as_file(name) || ends_as_file(start);
}

void refuse_name_of_file(const std::string& folder, std::span<const std::string> listed) {
  const std::string path = signed_path(folder);
  const std::string_view own = std::string_view(path).substr(path.rfind('/') + 1);
  const auto is_own = [&](std::string_view file) {
    return file.substr(file.rfind('/') + 1) == own;  // npos + 1 is 0
  };
  const bool is_listed = !own.empty() && std::ranges::any_of(listed, is_own);
  if (!is_listed && !has_name_of_file(folder)) return;
  throw Error(ErrorKind::Crypto,
              quote(without_secrets(folder), 4096) +
                  ": it is a folder with the name of a file, which nobody can have signed under "
                  "this name: with the option 'trust', give the path of a file in it");
}

std::unique_ptr<Source> open_model(const std::string& uri, const LoadOptions& options,
                                   Cancel& cancel) {
  cancel.check();
  return Opener(uri, options, cancel).open();
}

}  // namespace tensorizer
