// The catalogue of a safetensors model in several files, which are read as one source.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "format/catalogue.h"

namespace tensorizer {

// A file of the model, and where it begins in the source.
struct CataloguedShard {
  std::unique_ptr<Catalogue> catalogue;
  std::uint64_t begin;
};

class ShardedCatalogue final : public Catalogue {
 public:
  // The shards have no headers of tensors, no tensor of the same name, and no place in common. The
  // metadata are the keys whose values are equal in all shards that have them.
  explicit ShardedCatalogue(std::vector<CataloguedShard> shards);

  FormatInfo info() const override;
  bool encrypted() const noexcept override { return false; }
  bool authenticated() const noexcept override { return false; }
  void check_header_size(std::size_t, const FileLocation&) const override {}
  TensorDetails details(std::size_t entry, Bytes header,
                        const FileLocation& location) const override;

 private:
  void merge_metadata();
  void merge_digests();
  void merge_chunk_digests();

  std::vector<CataloguedShard> shards_;
  std::vector<std::size_t> first_;  // number of the first tensor of each shard
  std::vector<std::byte> digests_;
  std::vector<std::byte> chunks_;
};

}  // namespace tensorizer
