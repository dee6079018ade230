#include "io/copy.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace tensorizer {

namespace {

constexpr std::uint64_t kPiece = 4 << 20;

}  // namespace

void copy(Source& source, Sink& sink, Cancel& cancel,
          const std::function<void(ConstBytes piece)>& seen) {
  const std::optional<std::uint64_t> size = source.size();
  if (!size) {
    throw Error(ErrorKind::InvalidArgument,
                source.label() + " has an unknown size, and cannot be copied");
  }
  sink.begin(0, *size);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  for (std::uint64_t offset = 0; offset < *size;) {
    const Bytes piece(buffer.get(), std::min(kPiece, *size - offset));
    if (source.read_up_to(offset, piece, cancel) < piece.size()) {
      throw Error(ErrorKind::SystemError, source.label() + " got shorter while it was copied");
    }
    const ConstBytes bytes = piece;
    sink.write(offset, {&bytes, 1}, KeptUntil::Return, cancel);
    if (seen) seen(bytes);
    offset += bytes.size();
  }
  sink.finish(*size, cancel);
}

}  // namespace tensorizer
