// Loads the data of tensors from a Source into memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/check.h"
#include "engine/file_keys.h"
#include "engine/move.h"
#include "format/index.h"
#include "format/tensor_header.h"
#include "io/source.h"
#include "tensorizer_ops/options.h"

namespace tensorizer {

struct LoadItem {
  std::uint32_t entry;  // which tensor of the index
  // Where its data goes, or, in place, where it stands already, inside `LoadSettings::mapping`;
  // empty when it is staged, and when it is only looked at: then it passes through memory of the
  // job.
  Bytes memory;
  bool in_place = false;
  // The number that ports know the tensor by, if its data cannot be read into its final memory.
  std::optional<std::uint32_t> staged;
};

struct LoadSettings {
  Verify verify = Verify::None;
  int threads = 1;
  // The memory that a job may take beyond its outputs.
  std::uint64_t memory_ceiling = 0;
  const ExpectedDigests* expected_digests = nullptr;
  // Of an encrypted file.
  FileKeys* keys = nullptr;
  // Called when a load that checks anything (digests, a pin, MACs) ends with an error, for each
  // tensor that is not there in whole and known to be right: what it holds is not fit to be seen.
  std::function<void(std::uint32_t entry)> zero_incomplete;
  // Called with what the header of each item says, where somebody wants to know; from any worker.
  std::function<void(std::uint32_t entry, const TensorHeader& header)> keep_header;
  // The whole source, when items stand in place.
  ConstBytes mapping;
  OpenAccess open_access = default_access;
};

// Fills every item and checks what `verify` asks for: throws Error(HashMismatch) that names the
// tensor, and Error(InvalidFormat) for a tensor that has nothing to verify. What is encrypted is
// decrypted in its place, chunk by chunk, when the chunk's MAC is right; else that is an
// Error(Crypto). The dtypes that stand in tensor headers only, and could not be known before, are
// set in `index`. Items may come in any order.
void load(Source& source, Index& index, std::vector<LoadItem> items, const LoadSettings& settings,
          Progress& progress, Cancel& cancel);

}  // namespace tensorizer
