// Makes bundles of OpenSSF Model Signing v1.0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "codec/ecdsa.h"
#include "trust/certificate.h"

namespace tensorizer {

struct FileToSign {
  std::string_view name;  // relative to the model, with '/'
  std::uint64_t size = 0;
  ConstBytes digests;  // the SHA-256 of the file, or of each shard
};

struct ModelToSign {
  std::string_view name;              // of its folder, or of its only file
  std::span<const FileToSign> files;  // in any order
  std::uint64_t shard_size = 0;       // 0 to sign whole files
  std::span<const std::string> ignored;
  bool allow_symlinks = false;
};

// Returns the text of a bundle. With a chain, leaf first, others need only its root to verify it,
// else the public key. Throws Error(InvalidArgument) for names that bundles cannot have, no files,
// digests that are not those of the size, and a leaf that is not of this key or must not sign.
std::string sign_bundle(const ModelToSign& model, const PrivateKey& key,
                        std::span<const Certificate> chain = {});

}  // namespace tensorizer
