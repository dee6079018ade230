// Everything that is parsed of a file before its data: the header, the index and the records behind
// it, and every tensor's header. Any bytes either parse, to places inside the file, or are refused
// with Error(InvalidFormat).
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/read_index.h"
#include "format/tensor_header.h"
#include "io/source.h"

namespace tensorizer {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// A source that does not know where it ends, which is then no help in checking offsets.
class EndlessSource final : public Source {
 public:
  explicit EndlessSource(Source& source) : source_(source) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) override {
    source_.read(offset, pieces, cancel);
  }
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) override {
    return source_.read_up_to(offset, out, cancel);
  }
  std::optional<std::uint64_t> size() const override { return std::nullopt; }
  const std::string& label() const override { return source_.label(); }

 private:
  Source& source_;
};

void parse(Source& source, std::uint64_t size) {
  Cancel cancel;
  const Index index = read_index(source, cancel);
  const std::span<const Entry> entries = index.entries();
  require(entries.size() <= size);
  require(clean_names(entries).size() == entries.size());
  const bool sized = source.size().has_value();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    require(entry.header_offset <= entry.data_offset);
    require(entry.data_offset <= entry.end());
    require(!sized || entry.end() <= size);
    require(entry.meta || entry.memory_size() == entry.data_size);
    if (entry.header_size() > std::min(size, largest_tensor_header(entry))) continue;
    std::vector<std::byte> header(entry.header_size());
    const Bytes piece(header);
    try {
      source.read(entry.header_offset, {&piece, 1}, cancel);
      parse_tensor_header(header, index.header(), entry, i, place_of(source));
    } catch (const Error& error) {
      // One bad tensor does not keep a program from the others.
      require(error.kind() == ErrorKind::InvalidFormat);
    }
  }
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size);
  const std::unique_ptr<Source> source = memory_source(bytes, nullptr);
  EndlessSource endless(*source);
  // The endless one takes much longer, because it may believe an index of megabytes for a while.
  const bool known_end = size % 16 != 0;
  try {
    parse(known_end ? *source : endless, size);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::InvalidFormat);
  }
  return 0;
}
