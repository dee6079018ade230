// Tells one file of this machine from all others.
#pragma once

#include <cstdint>
#include <optional>

namespace tensorizer {

struct FileIdentity {
  std::uint64_t device;
  std::uint64_t inode;

  bool operator==(const FileIdentity&) const = default;
};

// Returns the identity of an open file; null if the system does not tell it.
std::optional<FileIdentity> identity_of(int descriptor) noexcept;

}  // namespace tensorizer
