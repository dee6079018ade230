// Reads bytes whose number a file or a server claims.
#pragma once

#include <cstdint>
#include <vector>

#include "base/redaction.h"
#include "format/catalogue.h"
#include "io/source.h"

namespace tensorizer {

// The location of a source, for checks and messages. It refers to the source and its label. While
// it lives, messages of its thread quote nothing that was sent to the server of the source.
struct SourceLocation : FileLocation {
  explicit SourceLocation(const Source& source)
      : FileLocation{source.label(), source.start(), source.size()}, quotes(source) {}

  RedactedQuotes quotes;
};

// Grows `bytes`, which are those at `offset`, to `size`. Returns false if the source ends before
// that. Allocates memory in steps, as bytes arrive.
bool read_on(Source& source, std::uint64_t offset, std::vector<std::byte>& bytes,
             std::uint64_t size, Cancel& cancel);

// Replaces `bytes` by the `size` bytes at `offset`. Allocates memory only as bytes arrive, unless
// the source is a local file: a size that a server or the file itself claims may be false.
void read_arriving(Source& source, std::uint64_t offset, std::uint64_t size,
                   std::vector<std::byte>& bytes, Cancel& cancel);

}  // namespace tensorizer
