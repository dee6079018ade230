// Fuzzes everything that is parsed of a file: the header, the index and the records behind it,
// every tensor's header, and the data against its hashes. Any bytes must either parse, to ranges
// inside the file that no two tensors share, or be refused with the right kind of Error.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "engine/load.h"
#include "engine/read_index.h"
#include "format/name.h"
#include "format/tensors/tensor_header.h"
#include "io/source.h"

namespace tensorizer {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Returns whether an Error is one that refuses a file before anything of it is loaded. Errors in
// the description of the encryption have a kind of their own.
bool is_refusal(const Error& error) {
  return error.kind() == ErrorKind::InvalidFormat || error.kind() == ErrorKind::Crypto;
}

// A source that does not know its size, so that offsets cannot be checked against it.
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

void check_names(std::span<const Entry> entries) {
  const std::vector<std::string_view> names = clean_names(entries);
  require(names.size() == entries.size());
  const std::unordered_set<std::string_view> different(names.begin(), names.end());
  require(different.size() == names.size());
  std::string path;
  for (const Entry& entry : entries) append_path(path, entry.name);
  require(path.size() >= entries.size());
}

void check_places(std::span<const Entry> entries, std::optional<std::uint64_t> size) {
  std::vector<const Entry*> in_order;
  for (const Entry& entry : entries) {
    require(entry.header_offset <= entry.data_offset);
    require(entry.data_offset <= entry.end());
    require(!size || entry.end() <= *size);
    require(entry.meta ? entry.data_size == 0 : entry.memory_size() == entry.data_size);
    in_order.push_back(&entry);
  }
  std::sort(in_order.begin(), in_order.end(),
            [](const Entry* a, const Entry* b) { return a->header_offset < b->header_offset; });
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    require(in_order[i - 1]->end() <= in_order[i]->header_offset);
  }
}

void check_headers(Source& source, const Index& index, std::uint64_t size, Cancel& cancel) {
  for (std::size_t i = 0; i < index.entries().size(); ++i) {
    const Entry& entry = index.entries()[i];
    require(entry.dtype.has_value());
    try {
      index.check_header_size(i, location_of(source));
      // A source of unknown size may end long before the header does.
      if (entry.header_size() > size) continue;
      std::vector<std::byte> header(entry.header_size());
      const Bytes piece(header);
      source.read(entry.header_offset, {&piece, 1}, cancel);
      index.details(i, header, location_of(source));
    } catch (const Error& error) {
      // One bad tensor must not keep a program from loading the others.
      require(is_refusal(error));
    }
  }
}

// As no two tensors share a byte, all of their data together is no larger than the file.
void load_all(Source& source, Index& index, Verify verify, Cancel& cancel) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<LoadItem> items;
  for (const Entry& entry : index.entries()) {
    memory.emplace_back(entry.data_size);
    items.push_back(whole_tensor(index, static_cast<std::uint32_t>(items.size())));
    items.back().memory = memory.back();
  }
  LoadSettings settings;
  settings.verify = verify;
  Progress progress;
  try {
    load(source, index, items, settings, progress, cancel);
    require(progress.done == progress.total);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::InvalidFormat || error.kind() == ErrorKind::HashMismatch ||
            (error.kind() == ErrorKind::Crypto && index.encrypted()));
  }
}

void parse(Source& source, std::uint64_t size) {
  Cancel cancel;
  Index index = read_index(source, nullptr, cancel);
  check_names(index.entries());
  check_places(index.entries(), source.size());
  check_headers(source, index, size, cancel);
  if (!source.size()) return;
  load_all(source, index, Verify::None, cancel);
  load_all(source, index, Verify::All, cancel);
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size);
  const std::unique_ptr<Source> source = memory_source(bytes, nullptr);
  EndlessSource endless(*source);
  // Only one input in 16 goes to the endless source, which takes much longer: it may believe for a
  // while that there is an index of megabytes.
  const bool known_end = size % 16 != 0;
  try {
    parse(known_end ? *source : endless, size);
  } catch (const Error& error) {
    require(is_refusal(error));
  }
  return 0;
}
