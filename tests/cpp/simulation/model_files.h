// Files of models, on this machine and on servers.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/open/open_file.h"
#include "engine/open/read_catalogue.h"
#include "engine/save/new_layout.h"
#include "engine/save/save.h"
#include "io/places/open.h"
#include "redis_cases.h"
#include "try.h"

namespace tensorizer::simulation {

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
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

// Saves a model, and returns the bytes of its file.
inline std::string saved(Try& run, const std::string& to, const Model& model) {
  const std::unique_ptr<Sink> sink = open_sink(to, {}, run.cancel);
  const std::unique_ptr<Layout> layout =
      new_layout(model.format, kind_in(model.format, model.kind, run.cancel), sink->start());
  std::vector<SaveItem> items;
  for (const Model::Tensor& tensor : model.tensors) {
    TensorSpec spec;
    spec.name = tensor.name;
    spec.shape = {static_cast<std::int64_t>(tensor.bytes.size())};
    layout->add(std::move(spec));
    items.push_back({as_bytes(tensor.bytes)});
  }
  Progress progress;
  save_file(*sink, *layout, items, {}, progress, run.cancel);
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

// Opens a file, which is read up to some byte at first.
inline std::unique_ptr<OpenFile> opened(Try& run, const std::string& uri,
                                        const OptionList& given = {}) {
  LoadOptions options{.source = {.given = given}};
  if (!given.empty() && run.world.one_in(2)) options.source.end = 1 + run.world.below(8000);
  return std::make_unique<OpenFile>(open_source(uri, options.source, run.cancel), options,
                                    run.cancel);
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

}  // namespace tensorizer::simulation
