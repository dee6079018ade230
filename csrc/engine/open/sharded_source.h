// The files of a sharded model as one source: one behind the other, with gaps between them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/redaction.h"
#include "format/safetensors/shard_index.h"
#include "io/source.h"

namespace tensorizer {

class ShardedSource final : public Source {
 public:
  // `index_file` is the file that `index` was read from, and `shards` are the files that it names,
  // in its order. Throws Unavailable for a shard that cannot be read at any offset.
  ShardedSource(const Source& index_file, ShardIndex index,
                std::vector<std::unique_ptr<Source>> shards);

  const ShardIndex& index() const noexcept { return index_; }
  std::size_t shard_count() const noexcept { return shards_.size(); }
  Source& shard(std::size_t number) noexcept { return *shards_[number].source; }
  // Returns the offset at which a shard begins: a multiple of kMappingUnit.
  std::uint64_t begin_of(std::size_t number) const noexcept { return shards_[number].begin; }

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override;
  // Fills gaps with zeros.
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override;
  std::optional<std::uint64_t> size() const override { return shards_.back().end; }
  std::optional<std::string> version() const override;
  void confirm(Cancel& cancel) override;
  std::shared_ptr<Mapping> map() override;
  std::optional<FileIdentity> identity() const override;
  bool reads(const FileIdentity& file) const override;
  std::uint64_t block() const override { return shards_.front().source->block(); }
  std::optional<std::string> signed_as() const override { return signed_as_; }
  bool checks_at_end() const override;
  std::uint64_t end_of_file(std::uint64_t offset) const override;
  bool remote() const override;
  bool cache(std::uint64_t offset, std::uint64_t size, Cancel& cancel) override;
  ReadHints hints(std::uint64_t offset, std::uint64_t length) override;
  SourceStats stats() const override;
  std::vector<std::pair<std::string, std::string>> headers() const override { return headers_; }
  const std::string& label() const override { return label_; }
  void redact(Redaction& text) const override;
  std::string describe_offset(std::uint64_t offset) const override;

 private:
  struct Shard {
    std::unique_ptr<Source> source;
    std::uint64_t begin;
    std::uint64_t end;
  };

  std::optional<std::string> common_signed_as() const;
  // Returns the first shard that ends behind `offset`, or the end of the list.
  std::vector<Shard>::const_iterator find(std::uint64_t offset) const;

  const ShardIndex index_;
  const std::string label_;
  const std::optional<std::string> index_version_;
  const SourceStats index_stats_;
  const std::vector<std::pair<std::string, std::string>> headers_;
  std::vector<Shard> shards_;
  std::optional<std::string> signed_as_;  // which loads ask for with every tensor
};

}  // namespace tensorizer
