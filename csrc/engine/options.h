// Parses the options of loads and saves: names and values as text, checked strictly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/argon2.h"
#include "format/catalogue.h"
#include "format/model_digest.h"
#include "io/option.h"
#include "io/options.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

// The default of `memory_ceiling`: the memory that a job may take beyond its tensors.
inline constexpr std::uint64_t kMemoryCeiling = 48 << 20;
// The default of `staging`: the pinned memory that a job may take to copy to or from a device.
inline constexpr std::uint64_t kStaging = 128 << 20;

// The default of `kdf_limit`: the most expensive key derivation that a file may ask for, which is
// the cost of "sensitive".
inline constexpr Argon2Cost kKdfLimit{4, 1 << 30};

struct LoadOptions {
  SourceOptions source;
  std::string key;  // the name of the key; empty if none is given
  Argon2Cost kdf_limit = kKdfLimit;
  bool require_authenticated = false;
  std::optional<ModelDigest> digest;  // that the file must have
  std::uint64_t memory_ceiling = kMemoryCeiling;
  std::uint64_t staging = kStaging;
};

struct SaveOptions {
  SinkOptions sink;
  std::string key;
  std::optional<Argon2Cost> kdf;  // how to derive a key; "moderate" if not given
  bool digests = false;
  std::optional<std::uint64_t> digest_chunk;
  bool plain_digests = false;    // whether an encrypted file lists the digests of its plain chunks
  std::optional<Format> format;  // by the name of the target if not given
  // Whether tensors that are the same memory are stored once. If not given, a save stores the data
  // of each name, and a rewrite keeps what the original does, as far as the format can.
  std::optional<bool> share;
  // The most bytes of tensors in one file, beyond which a model becomes several; 0 is no limit.
  std::uint64_t max_shard_size = 0;
  std::uint64_t memory_ceiling = kMemoryCeiling;
  std::uint64_t staging = kStaging;
};

struct WriterOptions {
  SaveOptions save;
  HashKinds hashes = kUsualHashes;
  int threads = 0;
  std::uint64_t expected_tensors = 0;
  std::uint64_t expected_bytes = 0;
};

// Throw Error(InvalidArgument) for an unknown name, with a list of the known ones, and for a
// malformed value.
LoadOptions parse_load_options(const OptionList& options);
SaveOptions parse_save_options(const OptionList& options);
WriterOptions parse_writer_options(const OptionList& options);

// Returns the names of all options of loads and saves. One that ends with a dot is for any names.
std::vector<std::string> option_names();

// Returns the options without those that apply to the other use only, for what loads and saves.
OptionList options_for(OptionUse use, const OptionList& options);

// Returns the options with the paths of this machine that they give, as texts or as "file:PATH",
// made absolute: for what opens files later, whatever the working directory is then.
OptionList absolute_paths(OptionList options);

// Throws Error(InvalidArgument) if the URI or an option may hold a secret instead of the name of
// one. `keeper` ("a pickled Reader") says in the message what would keep the secret.
void refuse_secrets(const std::string& uri, const OptionList& options, const std::string& keeper);

// Parse a word, such as "crc32". Throw Error(InvalidArgument), as does the next one.
Verify parse_verify(const std::string& text);
HashKinds parse_hashes(const std::string& text);
// Returns the word for the hashes that a file has.
std::string_view hashes_word(HashKinds hashes);
DigestVersion parse_digest_version(std::int64_t version);
// Returns the number of threads; 0 means every CPU that this process may use.
int parse_threads(std::int64_t threads);

}  // namespace tensorizer
