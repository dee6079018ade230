// Deltas of models, one of whose files lies on a server: they are made, and applied.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/delta/delta.h"
#include "model_files.h"
#include "redis_cases.h"
#include "try.h"
#include "web.h"

namespace tensorizer::simulation {

// A server with one file, which others replace and damage.
class ModelServer {
 public:
  // Redis has no kind.
  ModelServer(Try& run, std::optional<Web::Kind> kind) : run_(run) {
    if (!kind) {
      redis_.emplace(run);
      uri_ = redis_->uri;
      return;
    }
    uri_ = uri_on(*kind, run.options);
    web_.emplace(run.world, files_, *kind);
    if (kind == Web::Kind::Plain && run.world.one_in(2)) web_->hide_versions();
    run.world.serve(*web_);
  }

  const std::string& uri() const { return uri_; }

  // Replaces the file.
  void put(const std::string& bytes) {
    if (!redis_) return files_.put(bytes, to_hex(md5_of(as_bytes(bytes))));
    std::map<std::string, std::string> keys = in_redis(bytes, run_.cancel).keys();
    redis_->redis.replace(RedisPlace::names_of(keys_), keys);
    keys_ = std::move(keys);
  }
  // Changes a byte of the file. A web server does not notice.
  void damage(std::uint64_t at) {
    if (!redis_) {
      Files::Version version = files_.versions.back();
      version.bytes[at] ^= 1;
      return files_.versions.push_back(std::move(version));
    }
    std::map<std::string, std::string> keys = keys_;
    for (auto& [name, bytes] : keys) {
      if (at < bytes.size()) {
        bytes[at] ^= 1;
        break;
      }
      at -= bytes.size();
    }
    redis_->redis.replace(RedisPlace::names_of(keys_), keys);
    keys_ = std::move(keys);
  }
  // Does something before one of the next requests of a job, or later.
  void sometime(std::function<void()> effect) {
    run_.world.sometime(redis_ ? 40 : 12, std::move(effect));
  }
  // Returns whether so little went wrong that retries help.
  bool had_few_faults() const {
    return redis_ ? run_.world.faults() <= 3 : run_.world.had_only(3, kHarmless);
  }

 private:
  Try& run_;
  std::string uri_;
  Files files_;
  std::optional<Web> web_;
  std::optional<RedisPlace> redis_;
  std::map<std::string, std::string> keys_;  // of the file in Redis
};

// ---- models

// Returns a model, some of whose tensors have several blocks.
inline Model delta_model(Try& run, Format format) {
  Model model = some_model(run, format);
  if (!run.world.one_in(32)) return model;
  std::string& bytes = model.tensors.front().bytes;
  const std::string some = bytes;
  const std::uint64_t size = (1 << 20) + run.world.below(1 << 20);
  while (bytes.size() < size) bytes += some;
  return model;
}

// Returns a model that has changed little, or a lot.
inline Model changed_model(Try& run, const Model& older) {
  Model model = newer_model(run, older);
  for (Model::Tensor& tensor : model.tensors) {
    for (std::uint64_t i = run.world.below(5); i > 0; --i) {
      tensor.bytes[run.world.below(tensor.bytes.size())] ^= static_cast<char>(run.world.below(256));
    }
  }
  return model;
}

inline std::map<std::string, std::string> tensors_of(const Model& model) {
  std::map<std::string, std::string> tensors;
  for (const Model::Tensor& tensor : model.tensors) tensors[tensor.name] = tensor.bytes;
  return tensors;
}

// What is in a file, as a program sees it.
struct Content {
  Content(Try& run, const std::string& file) {
    OpenFile open(memory_source(as_bytes(file), nullptr), {}, run.cancel);
    for (const Entry& entry : open.catalogue().entries()) {
      tensors[std::string(entry.name)] = file.substr(entry.data_offset, entry.data_size);
    }
    metadata = open.metadata().value_or(Metadata());
  }

  // `has_metadata` says whether it must have those of the model, too.
  bool is(const Model& model, bool has_metadata) const {
    return tensors == tensors_of(model) && (!has_metadata || metadata == model.kind.metadata);
  }

  std::map<std::string, std::string> tensors;
  Metadata metadata;
};

inline Format some_format(Try& run, bool in_redis) {
  return !in_redis && run.world.one_in(4) ? Format::Safetensors : Format::Tensors;
}

inline RewriteRequest some_request(Try& run, const std::string& to, Format format) {
  RewriteRequest request{to, run.world.one_in(2) ? HashKinds{} : kUsualHashes, 1, {}};
  request.options.format = format;
  if (run.world.one_in(2)) request.options.memory_ceiling = 0;
  return request;
}

// Makes a delta, and returns the bytes of its file.
inline std::string delta_between(Try& run, const std::string& base, const std::string& fresh,
                                 const std::string& to, Format format) {
  Progress progress;
  make_delta(*opened(run, base), *opened(run, fresh), some_request(run, to, format), progress,
             run.cancel);
  return bytes_of(to);
}

inline void write_file(const std::string& to, const std::string& bytes) {
  std::ofstream(to, std::ios::binary) << bytes;
}

// Returns where a byte of a tensor's data lies.
inline std::uint64_t some_data(Try& run, const std::string& file) {
  const std::unique_ptr<Catalogue> catalogue = catalogue_of(file, run.cancel);
  const std::span<const Entry> entries = catalogue->entries();
  const Entry& entry = entries[run.world.below(entries.size())];
  return entry.data_offset + run.world.below(entry.data_size);
}

inline std::string damaged(Try& run, std::string file) {
  file[some_data(run, file)] ^= 1;
  return file;
}

// The files of a run. The server has one of them, or an older or a newer one in its place.
struct DeltaFiles {
  DeltaFiles(Try& run, bool in_redis) : format(some_format(run, in_redis)) {
    base = delta_model(run, format);
    before = changed_model(run, base);
    now = changed_model(run, base);
    fresh = changed_model(run, run.world.one_in(2) ? base : now);
  }

  Folder folder;
  const std::string target = folder.file("model");
  const Format format;
  Model base, before, now, fresh;
};

// ---- deltas are applied

// Applies a delta of a server to a local file, which it replaces.
inline void apply_delta_of(Try& run, std::optional<Web::Kind> kind) {
  SimulatedWorld& world = run.world;
  DeltaFiles files(run, !kind);
  std::string local = saved(run, files.target, files.base);
  const std::string made = files.folder.file("made"), delta = files.folder.file("delta");
  const Format format = some_format(run, !kind);
  const auto delta_to = [&](const Model& model) {
    static_cast<void>(saved(run, made, model));
    return delta_between(run, files.target, made, delta, format);
  };
  const std::string before = delta_to(files.before), now = delta_to(files.now),
                    fresh = delta_to(files.fresh);
  std::filesystem::remove(made);
  std::filesystem::remove(delta);
  const bool has_other_base = world.one_in(6);
  if (has_other_base) write_file(files.target, local = damaged(run, local));

  ModelServer server(run, kind);
  if (world.one_in(2)) server.put(before);
  server.put(now);
  const bool is_replaced = world.one_in(3), is_damaged = world.one_in(3);
  if (is_replaced) server.sometime([&] { server.put(fresh); });
  if (is_damaged) {
    const std::uint64_t size = std::min(now.size(), fresh.size());
    const std::uint64_t at = world.one_in(3) ? world.below(size) : some_data(run, now) % size;
    if (world.one_in(2)) {
      server.damage(at);
    } else {
      server.sometime([&server, at] { server.damage(at); });
    }
  }
  world.set_drip(10000);
  std::optional<ErrorKind> failure;
  const bool applied = run.succeeds([&] {
    Progress progress;
    try {
      apply_delta(*opened(run, server.uri(), run.options), *opened(run, files.target),
                  some_request(run, files.target, files.format), progress, run.cancel);
    } catch (const Error& error) {
      failure = error.kind();
      throw;
    }
  });
  require(files.folder.names() == std::vector<std::string>{"model"}, "other files are left behind");
  const std::string found = bytes_of(files.target);
  if (!applied) {
    require(found == local, "a delta is not applied, and the file is another one");
    require(has_other_base || is_replaced || is_damaged || !server.had_few_faults(),
            "a delta is not applied because of a few faults");
    require(failure == ErrorKind::InvalidArgument || !has_other_base || is_replaced || is_damaged ||
                world.faults() > 0,
            "another error than that the base is another model");
    return;
  }
  require(!has_other_base, "a delta is applied to another model");
  // Nothing checks metadata that were saved without hashes.
  const Content content(run, found);
  require(content.is(files.now, !is_damaged) ||
              (is_replaced && content.is(files.fresh, !is_damaged)) ||
              (world.faults() > 0 && content.is(files.before, !is_damaged)),
          "a delta makes other bytes than those of a model");
}

// Applies a local delta to a model on a server. The result replaces a local file, or none.
inline void apply_to_base_of(Try& run, std::optional<Web::Kind> kind) {
  SimulatedWorld& world = run.world;
  DeltaFiles files(run, !kind);
  const std::string made = files.folder.file("made"), delta = files.folder.file("delta");
  const std::string before = saved(run, made, files.before), now = saved(run, made, files.now);
  const std::string base = saved(run, files.target, files.base);
  static_cast<void>(delta_between(run, files.target, made, delta, some_format(run, false)));
  const std::string fresh = saved(run, made, files.fresh);
  std::filesystem::remove(made);
  std::string local = fresh;
  if (world.one_in(2)) {
    write_file(files.target, local);
  } else {
    std::filesystem::remove(files.target);
    local.clear();
  }

  ModelServer server(run, kind);
  if (world.one_in(2)) server.put(before);
  server.put(base);
  const bool is_replaced = world.one_in(3), is_damaged = world.one_in(4);
  if (is_damaged) server.put(damaged(run, base));
  if (is_replaced) server.sometime([&] { server.put(world.one_in(2) ? now : fresh); });
  world.set_drip(10000);
  const bool applied = run.succeeds([&] {
    Progress progress;
    apply_delta(*opened(run, delta), *opened(run, server.uri(), run.options),
                some_request(run, files.target, files.format), progress, run.cancel);
  });
  const std::string found = bytes_of(files.target);
  require(files.folder.names().size() == (found.empty() ? 1 : 2), "other files are left behind");
  if (!applied) {
    require(found == local, "a delta is not applied, and the file is another one");
    require(is_replaced || is_damaged || !server.had_few_faults(),
            "a delta is not applied because of a few faults");
    return;
  }
  // A stale answer may still be right, and so are a base that was there before, and the new model
  // in its place.
  require(!is_damaged || is_replaced || world.faults() > 0, "a delta is applied to another model");
  require(Content(run, found).is(files.now, true),
          "a delta makes other bytes than those of its model");
}

inline void apply_from(Try& run, std::optional<Web::Kind> kind) {
  run.world.one_in(3) ? apply_to_base_of(run, kind) : apply_delta_of(run, kind);
}

// ---- deltas are made

// Makes a delta of a local file and a newer one on a server, and applies it.
inline void make_delta_from(Try& run, std::optional<Web::Kind> kind) {
  SimulatedWorld& world = run.world;
  DeltaFiles files(run, !kind);
  const std::string made = files.folder.file("made"), delta = files.folder.file("delta");
  const std::string base = saved(run, files.target, files.base),
                    before = saved(run, made, files.before), now = saved(run, made, files.now),
                    fresh = saved(run, made, files.fresh);
  std::filesystem::remove(made);
  ModelServer server(run, kind);
  if (world.one_in(2)) server.put(before);
  server.put(now);
  const bool is_replaced = world.one_in(3), is_damaged = world.one_in(4);
  if (is_damaged) server.put(damaged(run, now));
  if (is_replaced) server.sometime([&] { server.put(fresh); });
  world.set_drip(10000);
  const bool is_made = run.succeeds([&] {
    Progress progress;
    make_delta(*opened(run, files.target), *opened(run, server.uri(), run.options),
               some_request(run, delta, some_format(run, false)), progress, run.cancel);
  });
  require(files.folder.names().size() == (is_made ? 2 : 1), "other files are left behind");
  require(bytes_of(files.target) == base, "a delta is made, and the base is another file");
  if (!is_made) {
    require(is_replaced || is_damaged || !server.had_few_faults(),
            "a delta is not made because of a few faults");
    return;
  }
  Progress progress;
  apply_delta(*opened(run, delta), *opened(run, files.target),
              some_request(run, files.target, files.format), progress, run.cancel);
  const Content content(run, bytes_of(files.target));
  require(
      (!is_damaged && content.is(files.now, true)) ||
          (is_replaced && content.is(files.fresh, true)) ||
          (world.faults() > 0 && (content.is(files.before, true) || content.is(files.now, true))),
      "a delta makes other bytes than those of the newer file");
}

}  // namespace tensorizer::simulation
