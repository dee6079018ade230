// Secrets that this process has sent to servers, which may repeat them anywhere.
#pragma once

#include <string>
#include <string_view>

namespace tensorizer {

// Keeps a secret out of what struck() returns from now on. One of fewer than 8 bytes is ignored: it
// may be a word. Of thousands, only the latest are known. Returns true if it was not among these.
// Thread-safe.
bool strike(std::string_view secret);

// Returns `text` with "..." in place of each of these secrets, ignoring case. Thread-safe.
std::string struck(std::string_view text);

}  // namespace tensorizer
