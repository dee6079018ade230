// Updates of a local file from a newer one on a server.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "engine/rewrite/update.h"
#include "model_files.h"
#include "redis_cases.h"
#include "try.h"
#include "web.h"

namespace tensorizer::simulation {

// The files of a run: the local one, that of a server, and what the server had before.
struct UpdatedFiles {
  explicit UpdatedFiles(Try& run, Format format) {
    const Model older = some_model(run, format);
    const Model newer = newer_model(run, older);
    chunk_size = newer.kind.chunk_size;
    fresh = saved(run, folder.file("made"), newer_model(run, newer));
    now = saved(run, folder.file("made"), newer);
    Model local = older;
    if (run.world.one_in(3)) local.kind.chunk_size = 0;
    before = saved(run, folder.file("made"), older);
    std::filesystem::remove(folder.file("made"));
    if (run.world.one_in(5)) return;
    static_cast<void>(saved(run, target, local));
    if (!run.world.one_in(4)) return;
    damage(run);
  }

  // Changes a byte of a tensor or its header in the local file.
  void damage(Try& run) const {
    std::string bytes = bytes_of(target);
    const std::unique_ptr<Catalogue> catalogue = catalogue_of(bytes, run.cancel);
    const std::uint64_t begin = catalogue->entries().front().header_offset;
    bytes[begin + run.world.below(catalogue->end() - begin)] ^= 1;
    std::ofstream(target, std::ios::binary) << bytes;
  }

  Folder folder;
  const std::string target = folder.file("model");
  std::string before, now, fresh;
  std::uint64_t chunk_size = 0;
};

// Updates the local file, which is then one of the server's files in whole, or as it was.
inline void update_from(Try& run, UpdatedFiles& files, const std::string& uri, bool is_replaced,
                        const std::function<bool()>& may_fail) {
  const std::string local = bytes_of(files.target);
  run.world.set_drip(10000);
  Updated moved{};
  const bool updated = run.succeeds([&] {
    const std::unique_ptr<OpenFile> from = opened(run, uri, run.options);
    Progress progress;
    moved = update(*from, files.target, /*threads=*/1, progress, run.cancel);
  });
  const std::string found = bytes_of(files.target);
  const std::size_t is_there = found.empty() ? 0 : 1;
  require(files.folder.names().size() == is_there, "an update leaves other files behind");
  if (!updated) {
    require(found == local, "an update fails, and the local file is another one");
    require(may_fail(), "an update fails because of a few faults");
    return;
  }
  require(found == files.now || (is_replaced && found == files.fresh) ||
              (run.world.faults() > 0 && found == files.before),
          "other bytes than those of one file");
  if (local.empty() || is_replaced || run.world.faults() > 0) return;
  const auto held = pieces_of(local, files.chunk_size, run.cancel);
  Updated expected{};
  for (const std::string& piece : pieces_of(files.now, files.chunk_size, run.cancel)) {
    (std::ranges::count(held, piece) > 0 ? expected.kept : expected.fetched) += piece.size();
  }
  require(moved == expected, "an update does not fetch what the local file lacks");
}

inline void update_from_web(Try& run, Web::Kind kind) {
  SimulatedWorld& world = run.world;
  UpdatedFiles made(run, world.one_in(4) ? Format::Safetensors : Format::Tensors);
  const std::string uri = uri_on(kind, run.options);
  Files files;
  Web web(world, files, kind);
  if (kind == Web::Kind::Plain && world.one_in(2)) web.hide_versions();
  world.serve(web);
  const auto put = [&](const std::string& bytes) {
    files.put(bytes, to_hex(md5_of(as_bytes(bytes))));
  };
  if (world.one_in(2)) put(made.before);
  put(made.now);
  const bool is_replaced = world.one_in(3);
  if (is_replaced) world.sometime(12, [&] { put(made.fresh); });
  update_from(run, made, uri, is_replaced,
              [&] { return is_replaced || !world.had_only(3, kHarmless); });
}

inline void update_from_redis(Try& run) {
  SimulatedWorld& world = run.world;
  UpdatedFiles made(run, Format::Tensors);
  const RedisFile now = in_redis(made.now, run.cancel), fresh = in_redis(made.fresh, run.cancel);
  RedisPlace place(run);
  place.redis.replace({}, now.keys());
  const bool is_replaced = world.one_in(3);
  if (is_replaced) {
    world.sometime(40,
                   [&] { place.redis.replace(RedisPlace::names_of(now.keys()), fresh.keys()); });
  }
  update_from(run, made, place.uri, is_replaced, [&] { return is_replaced || world.faults() > 3; });
}

}  // namespace tensorizer::simulation
