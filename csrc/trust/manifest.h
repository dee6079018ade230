// What a signed bundle says of the files of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/sha256.h"

namespace tensorizer {

// The size of the largest bundle.
inline constexpr std::size_t kMostBundleBytes = std::size_t{256} << 20;

struct ManifestFile {
  std::string name;        // relative to the model, with '/'
  std::uint64_t size = 0;  // known only in shards
  std::size_t first = 0;   // digest of it
  std::size_t count = 1;   // of its digests: one, or one for each shard
};

// Const methods are thread-safe.
struct Manifest {
  // Returns null for a name that was not signed.
  const ManifestFile* find(std::string_view name) const;

  // Returns the SHA-256 digests of a file, one after the other.
  ConstBytes digests_of(const ManifestFile& file) const noexcept {
    return ConstBytes(digests).subspan(file.first * kSha256Size, file.count * kSha256Size);
  }

  bool in_shards() const noexcept { return shard_size > 0; }

  std::string model;             // its name, which proves nothing
  std::uint64_t shard_size = 0;  // each but the last of a file has it; 0 if files are not in shards
  // Sorted by name. In shards, empty files are not listed.
  std::vector<ManifestFile> files;
  std::vector<std::byte> digests;
  // As they were signed: folders and files of the model that are not in `files`. They are not
  // checked, and may be any text.
  std::vector<std::string> ignored;
  bool allow_symlinks = false;
  Sha256Digest root{};  // the digest of all digests
  std::string signer;   // for messages
};

// Returns why a file of a model cannot have this name; null if it can.
const char* fault_of_file_name(std::string_view name);

}  // namespace tensorizer
