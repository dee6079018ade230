// Updates of a local file from a newer one on a server.
//
// update() itself (transfer/files/update.h) needs torch. This is what it is made of: PatchedSource,
// and a save that reads its tensors from there.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/load/tensor_source.h"
#include "engine/open/read_catalogue.h"
#include "engine/rewrite/patched_source.h"
#include "engine/save/new_layout.h"
#include "engine/save/save.h"
#include "io/places/open.h"
#include "redis_cases.h"
#include "try.h"
#include "web.h"

namespace tensorizer::simulation {

// ---- files

struct Model {
  struct Tensor {
    std::string name;
    std::string bytes;
  };
  Format format = Format::Tensors;
  FileKind kind{};
  std::vector<Tensor> tensors{};
};

// A folder of this machine, which is empty at first and removed at the end.
class Folder {
 public:
  Folder() {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return path_ / name; }
  // Returns the names of all files, hidden ones as well.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& each : std::filesystem::directory_iterator(path_)) {
      names.push_back(each.path().filename());
    }
    return names;
  }

 private:
  const std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                      ("tensorizer-simulation-" + std::to_string(getpid()));
};

// Returns the bytes of a file; nothing if there is none.
inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Saves tensors to a local file. The data of each comes from `items`.
inline void save_model(Try& run, const std::string& to, Format format, const FileKind& kind,
                       const std::vector<TensorSpec>& specs, const std::vector<SaveItem>& items,
                       const SaveSettings& settings) {
  const std::unique_ptr<Sink> sink = open_sink(to, {}, run.cancel);
  const std::unique_ptr<Layout> layout =
      new_layout(format, kind_in(format, kind, run.cancel), sink->start());
  for (const TensorSpec& spec : specs) layout->add(spec);
  Progress progress;
  save_file(*sink, *layout, items, settings, progress, run.cancel);
}

inline TensorSpec spec_of(std::string_view name, std::uint64_t size) {
  TensorSpec spec;
  spec.name = name;
  spec.shape = {static_cast<std::int64_t>(size)};
  return spec;
}

// Saves a model, and returns the bytes of its file.
inline std::string saved(Try& run, const std::string& to, const Model& model) {
  std::vector<TensorSpec> specs;
  std::vector<SaveItem> items;
  for (const Model::Tensor& tensor : model.tensors) {
    specs.push_back(spec_of(tensor.name, tensor.bytes.size()));
    items.push_back({as_bytes(tensor.bytes)});
  }
  save_model(run, to, model.format, model.kind, specs, items, {});
  return bytes_of(to);
}

inline Model some_model(Try& run, Format format) {
  SimulatedWorld& world = run.world;
  Model model{.format = format};
  model.kind.chunk_size = (64 << 10) << world.below(2);
  model.kind.header.hashes.set(Hash::Sha256, world.one_in(2));
  model.kind.data_digests = world.one_in(3);
  if (world.one_in(3)) model.kind.metadata = {{"step", std::to_string(world.below(1000))}};
  for (std::uint64_t i = 1 + world.below(4); i > 0; --i) {
    model.tensors.push_back(
        {"t" + std::to_string(i), run.some_bytes(world.one_in(8) ? 200000 : 2000)});
  }
  return model;
}

// Returns a model that has some of the tensors of another one. Its file often has the same size.
inline Model newer_model(Try& run, const Model& older) {
  SimulatedWorld& world = run.world;
  Model model = world.one_in(3) ? some_model(run, older.format) : older;
  for (Model::Tensor& tensor : model.tensors) {
    const auto same = std::ranges::find(older.tensors, tensor.name, &Model::Tensor::name);
    if (same != older.tensors.end() && world.one_in(2)) tensor.bytes = same->bytes;
    if (world.one_in(3)) tensor.bytes[world.below(tensor.bytes.size())] ^= 1;
  }
  return model;
}

inline std::unique_ptr<Catalogue> catalogue_of(const std::string& file, Cancel& cancel) {
  return read_catalogue(*memory_source(as_bytes(file), nullptr), nullptr, cancel);
}

// Returns the header of each tensor, and each chunk.
inline std::vector<std::string> pieces_of(const std::string& file, std::uint64_t chunk,
                                          Cancel& cancel) {
  std::vector<std::string> pieces;
  const std::unique_ptr<Catalogue> catalogue = catalogue_of(file, cancel);
  for (const Entry& entry : catalogue->entries()) {
    pieces.push_back(file.substr(entry.header_offset, entry.header_size()));
    for (std::uint64_t at = 0; at < entry.data_size; at += chunk) {
      pieces.push_back(file.substr(entry.data_offset + at, std::min(chunk, entry.data_size - at)));
    }
  }
  return pieces;
}

// ---- updates

// Gives a save the tensors of another file.
class TensorsOfFile final : public TensorReader {
 public:
  TensorsOfFile(const TensorFile& file, Cancel& cancel) : source_(file), cancel_(cancel) {}

  void read(std::uint32_t tensor, std::uint64_t position, Bytes out) override {
    source_.read(tensor, position, out, cancel_);
  }

 private:
  TensorSource source_;
  Cancel& cancel_;
};

// Does what update() does. Returns how many bytes it has fetched, and how many of the older file it
// has kept; null if there is none.
inline std::optional<std::array<std::uint64_t, 2>> update(Try& run, const std::string& uri,
                                                          const std::string& to) {
  Cancel& cancel = run.cancel;
  LoadOptions options{.source = {.given = run.options}};
  if (run.world.one_in(2)) options.source.end = 1 + run.world.below(8000);
  OpenFile from(open_source(uri, options.source, cancel), options, cancel);
  const Catalogue& catalogue = from.catalogue();
  std::optional<OpenFile> older;
  std::optional<PatchedSource> patched;
  FileKind kind;
  kind.header.hashes = from.hashes(cancel);
  kind.chunk_size = catalogue.chunk_digests().chunk_size();
  kind.data_digests = !catalogue.data_digests().empty();
  kind.metadata = from.metadata().value_or(Metadata());
  if (std::filesystem::exists(to)) {
    older.emplace(open_source(to, {}, cancel), LoadOptions(), cancel);
    patched.emplace(from, *older, /*threads=*/1, cancel);
  }
  Source& source = patched ? *patched : from.source();
  const TensorFile file{source, catalogue, nullptr, nullptr,
                        compares_chunks(catalogue, Verify::All, nullptr)};
  std::vector<TensorSpec> specs;
  std::vector<SaveItem> items;
  for (const Entry& entry : catalogue.entries()) {
    items.push_back({.memory = {}, .read = static_cast<std::uint32_t>(items.size())});
    specs.push_back(spec_of(entry.name, entry.data_size));
  }
  SaveSettings settings{.memory_ceiling = run.world.one_in(2) ? 0 : kMemoryCeiling};
  settings.open_access = [&] {
    return TensorAccess{.reader = std::make_unique<TensorsOfFile>(file, cancel)};
  };
  settings.confirm = [&] { source.confirm(cancel); };
  save_model(run, to, catalogue.info().format, kind, specs, items, settings);
  if (!patched) return std::nullopt;
  return std::array{patched->fetched(), patched->kept()};
}

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
  std::optional<std::array<std::uint64_t, 2>> moved;
  const bool updated = run.succeeds([&] { moved = update(run, uri, files.target); });
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
  if (!moved || is_replaced || run.world.faults() > 0) return;
  const auto held = pieces_of(local, files.chunk_size, run.cancel);
  std::array<std::uint64_t, 2> expected{};
  for (const std::string& piece : pieces_of(files.now, files.chunk_size, run.cancel)) {
    expected[std::ranges::count(held, piece) > 0 ? 1 : 0] += piece.size();
  }
  require(*moved == expected, "an update does not fetch what the local file lacks");
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

// Returns the keys of a `.tensors` file: one for each header, and for the data of each tensor.
inline RedisFile in_redis(const std::string& bytes, Cancel& cancel) {
  const std::unique_ptr<Catalogue> catalogue = catalogue_of(bytes, cancel);
  const std::uint64_t begin = catalogue->entries().front().header_offset;
  RedisFile file{.head = bytes.substr(0, begin),
                 .body = bytes.substr(begin, catalogue->end() - begin),
                 .parts = {}};
  for (const Entry& entry : catalogue->entries()) {
    const std::string name(entry.name);
    file.parts.push_back({name, entry.header_offset - begin, entry.header_size()});
    file.parts.push_back({name, entry.data_offset - begin, entry.data_size});
  }
  return file;
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
