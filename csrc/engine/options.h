// What travels in a job's `options`: names and values as text, checked strictly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codec/argon2.h"
#include "engine/load.h"
#include "format/tensors/tensor_header.h"
#include "io/options.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// The memory that a job may take beyond its tensors when the caller says nothing.
inline constexpr std::uint64_t kMemoryCeiling = 48 << 20;
// The pinned memory that a job may take for its way to or from a device.
inline constexpr std::uint64_t kStaging = 128 << 20;

// The hardest derivation of a key that a file may ask for: as "sensitive" has it.
inline constexpr Argon2Cost kKdfLimit{4, 1 << 30};

struct LoadOptions {
  SourceOptions source;
  std::string key;  // the name of one; empty where none is given
  Argon2Cost kdf_limit = kKdfLimit;
  bool require_authenticated = false;
  std::optional<Sha256Digest> digest;  // that the file must have
  std::uint64_t memory_ceiling = kMemoryCeiling;
  std::uint64_t staging = kStaging;
};

struct SaveOptions {
  SinkOptions sink;
  std::string key;
  Argon2Cost kdf = *named_cost("moderate");
  bool digests = false;
  std::uint64_t memory_ceiling = kMemoryCeiling;
  std::uint64_t staging = kStaging;
};

struct WriterOptions {
  SaveOptions save;
  HashKinds hashes{true, true};
  int threads = 0;
  std::uint64_t expected_tensors = 0;
};

// Throw Error(InvalidArgument) for an unknown name, listing the known ones, and for a malformed
// value.
LoadOptions parse_load_options(const OptionList& options);
SaveOptions parse_save_options(const OptionList& options);
WriterOptions parse_writer_options(const OptionList& options);

// Throws Error(InvalidArgument) where the URI or an option holds a secret that `keeper` ("a pickled
// Reader") would keep, instead of naming it.
void refuse_secrets(const std::string& uri, const OptionList& options, const std::string& keeper);

// "none", "crc32" or "all".
Verify parse_verify(const std::string& text);
// "all", "crc32", "sha256" or "none".
HashKinds parse_hashes(const std::string& text);
// 0 means every CPU that this process may use.
int parse_threads(std::int64_t threads);

}  // namespace tensorizer
