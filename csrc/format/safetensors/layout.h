// The layout of a safetensors file that is being written: its JSON header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"

namespace tensorizer {

// Writes the bytes that the safetensors library writes for the same tensors in the same order, and,
// if hashes are asked for, the digests of their data and of its chunks in the metadata.
class SafetensorsLayout final : public Layout {
 public:
  // The kind must have no encryption, no CRC32s, and no list of data digests beyond the hashes.
  explicit SafetensorsLayout(FileKind kind);

  void add(TensorSpec spec) override;
  void check_size() const override;
  void remove_from(std::size_t first) override;
  bool has_digests() const noexcept override {
    return kind_.header.hashes.has(Hash::Sha256) || kind_.chunk_size > 0;
  }
  ConstBytes terminator() const noexcept override { return {}; }
  void check_names(Cancel& cancel) const override;
  // Returns a multiple of 8.
  std::uint64_t prefix_size() const override;
  std::uint64_t largest_prefix() const noexcept override;
  std::vector<std::byte> prefix(std::uint64_t start, std::uint64_t size) const override;

 private:
  void check_in_format(const TensorSpec& spec) const override;
  // Returns the size of the JSON, without padding.
  std::uint64_t json_size() const;
  // Returns the size of the lists of digests.
  std::uint64_t lists_size() const;
  // Puts a list of digests: of whole tensors if `chunk_size` is 0.
  void put_list(std::string& json, std::string_view key, std::uint64_t chunk_size) const;

  // The JSON of the metadata up to the lists of digests, or up to the brace that ends it if there
  // are none. Empty if the file has no metadata.
  const std::string metadata_;
  std::uint64_t entries_size_ = 0;  // of the JSON of all tensors
};

}  // namespace tensorizer
