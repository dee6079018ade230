// Encrypted files in memory, and their keys.
#pragma once

#include "engine/digest/file_keys.h"
#include "memory_file.h"
#include "raw_crypt.h"

namespace tensorizer::testing_support {

inline KeySource key_of(std::uint32_t seed = 41) { return make_key(pattern(kKeySize, seed)); }

inline constexpr Argon2Cost kEasy{1, 8192};

inline FileKeys keys_of(KeySource source) { return FileKeys(std::move(source), kEasy, "'f'"); }

// A file encrypted with the key of that seed.
inline FileKind encrypted(HashKinds hashes = {false, true}, std::uint32_t seed = 41) {
  return {{hashes, Encryption{key_of(seed).secret, {}}}, false};
}
// A file encrypted with a passphrase.
inline FileKind encrypted(std::string_view passphrase, const KeyDerivation& derivation) {
  return {{{Hash::Sha256}, Encryption{derive_key(as_bytes(passphrase), derivation), derivation}},
          false};
}

inline Index read_with(ConstBytes file, FileKeys* keys) {
  Cancel cancel;
  return read_index(*memory_source(file, nullptr), keys, cancel);
}

// The loaded tensors of a file; after an error, what they hold then.
struct Loading {
  std::vector<std::vector<std::byte>> tensors;
  std::vector<bool> incomplete;
  std::optional<Error> error;
};

inline Loading load_all(Source& source, FileKeys* keys, LoadSettings settings = {}) {
  Loading loading;
  Cancel cancel;
  try {
    Index index = read_index(source, keys, cancel);
    std::vector<LoadItem> items;
    for (const Entry& entry : index.entries()) {
      loading.tensors.emplace_back(entry.data_size, std::byte{0xEE});
      const auto number = static_cast<std::uint32_t>(items.size());
      items.push_back(item_into(index, number, loading.tensors.back()));
    }
    loading.incomplete.resize(items.size());
    settings.keys = keys;
    settings.zero_incomplete = [&](std::uint32_t entry) {
      EXPECT_FALSE(loading.incomplete[entry]) << "incomplete twice";
      loading.incomplete[entry] = true;
    };
    Progress progress;
    load(source, index, items, settings, progress, cancel);
  } catch (const Error& error) {
    loading.error = error;
  }
  return loading;
}
inline Loading load_all(ConstBytes file, FileKeys* keys, const LoadSettings& settings = {}) {
  return load_all(*memory_source(file, nullptr), keys, settings);
}

}  // namespace tensorizer::testing_support
