// Signs the files of a model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "codec/ecdsa.h"
#include "engine/move/move.h"
#include "io/options.h"
#include "trust/certificate.h"

namespace tensorizer {

struct SignRequest {
  struct File {
    std::string name;  // relative to the model, with '/'
    std::string uri;
  };
  std::string model;  // its name
  std::vector<File> files{};
  // 0 signs files in whole, so that loads of parts must read all of them. If not given, what keeps
  // the bundle small.
  std::optional<std::uint64_t> shard_size{};
  std::vector<std::string> ignored{};  // as in the bundle
  SourceOptions source{};
  int threads = 1;
};

// Reads all files, and returns the text of a bundle that is signed by `key`; sign_bundle() says
// what `chain` is. Throws InvalidArgument for a source whose size is unknown.
std::string sign_files(const SignRequest& request, const PrivateKey& key,
                       std::span<const Certificate> chain, Progress& progress, Cancel& cancel);

}  // namespace tensorizer
