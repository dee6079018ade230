// Files that hold a key, a passphrase or another secret.
#pragma once

#include <cstddef>
#include <string>

#include "codec/secret_bytes.h"

namespace tensorizer {

// The file's bytes, or one more than `most` of them: it may be a device that never ends. `what` it
// shall hold ("a key") is for messages. Throws Error(NotFound) and the like, also where somebody
// has it open as a pipe and writes nothing for 10 seconds.
SecretBytes read_secret_file(const std::string& path, std::size_t most, const std::string& what);

}  // namespace tensorizer
