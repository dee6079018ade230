// What every fuzz target of a parser requires of a file that was not refused.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/load/load.h"
#include "engine/open/read_catalogue.h"
#include "engine/read_arriving.h"
#include "format/name.h"
#include "fuzz_text.h"
#include "io/source.h"

namespace tensorizer {

// Returns whether an Error is one that refuses a file before anything of it is loaded. Errors in
// the description of the encryption have a kind of their own.
inline bool is_refusal(const Error& error) {
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

inline void check_names(const Catalogue& catalogue) {
  const std::vector<NamedEntry> stored = all_names(catalogue);
  const std::vector<std::string_view> names = clean_names(stored);
  require(stored.size() == catalogue.name_count() && names.size() == stored.size());
  const std::unordered_set<std::string_view> different(names.begin(), names.end());
  require(different.size() == names.size());
  if (catalogue.info().format != Format::Tensors) return;
  std::string path;
  for (const NamedEntry& named : stored) append_path(path, named.name);
  require(path.size() >= stored.size());
}

inline void check_ties(const Catalogue& catalogue) {
  const std::vector<NamedEntry> names = all_names(catalogue);
  for (std::uint32_t number = 0; number < names.size(); ++number) {
    const NamedEntry named = catalogue.named(number);
    require(named.name == names[number].name && named.entry == names[number].entry);
    const Tie* const tie = catalogue.tie(number);
    require(tie != nullptr || catalogue.number_of(named.entry) == number);
    require(tie == nullptr || catalogue.entries()[tie->entry].data_size > 0);
  }
}

inline void check_places(std::span<const Entry> entries, std::optional<std::uint64_t> size) {
  std::vector<const Entry*> in_order;
  for (const Entry& entry : entries) {
    require(entry.header_offset <= entry.data_offset);
    require(entry.data_offset <= entry.end());
    require(!size || entry.end() <= *size);
    require(entry.meta ? entry.data_size == 0 : entry.memory_size() == entry.data_size);
    in_order.push_back(&entry);
  }
  std::sort(in_order.begin(), in_order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->header_offset, a->end()) < std::pair(b->header_offset, b->end());
  });
  for (std::size_t i = 1; i < in_order.size(); ++i) {
    require(in_order[i - 1]->end() <= in_order[i]->header_offset);
  }
}

inline void check_headers(Source& source, const Catalogue& catalogue, std::uint64_t size,
                          Cancel& cancel) {
  for (std::size_t i = 0; i < catalogue.entries().size(); ++i) {
    const Entry& entry = catalogue.entries()[i];
    require(entry.dtype.has_value());
    try {
      catalogue.check_header_size(i, SourceLocation(source));
      // A source of unknown size may end long before the header does.
      if (entry.header_size() > size) continue;
      std::vector<std::byte> header(entry.header_size());
      const Bytes piece(header);
      source.read(entry.header_offset, {&piece, 1}, cancel);
      catalogue.details(i, header, SourceLocation(source));
    } catch (const Error& error) {
      // One bad tensor must not keep a program from loading the others.
      require(is_refusal(error) || error.kind() == ErrorKind::HashMismatch);
    }
  }
}

// As no two tensors share a byte, all of their data together is no larger than the file.
inline void load_all(Source& source, Catalogue& catalogue, Verify verify, Cancel& cancel) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<LoadItem> items;
  for (const Entry& entry : catalogue.entries()) {
    memory.emplace_back(entry.data_size);
    items.push_back(whole_tensor(catalogue, static_cast<std::uint32_t>(items.size())));
    items.back().memory = memory.back();
  }
  LoadSettings settings;
  settings.verify = verify;
  Progress progress;
  try {
    load(source, catalogue, items, settings, progress, cancel);
    require(progress.done == progress.total);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::InvalidFormat || error.kind() == ErrorKind::HashMismatch ||
            (error.kind() == ErrorKind::Crypto && catalogue.encrypted()) ||
            (error.kind() == ErrorKind::InvalidArgument && verify != Verify::None));
  }
}

inline void parse(Source& source, std::uint64_t size) {
  Cancel cancel;
  const std::unique_ptr<Catalogue> read = read_catalogue(source, nullptr, cancel);
  Catalogue& catalogue = *read;
  check_names(catalogue);
  check_ties(catalogue);
  check_places(catalogue.entries(), source.size());
  check_headers(source, catalogue, size, cancel);
  if (!source.size()) return;
  load_all(source, catalogue, Verify::None, cancel);
  load_all(source, catalogue, Verify::All, cancel);
}

// Any bytes must either parse, to ranges inside the file that no two tensors share, or be refused
// with the right kind of Error.
inline void parse_or_refuse(ConstBytes bytes) {
  const std::unique_ptr<Source> source = memory_source(bytes, nullptr);
  EndlessSource endless(*source);
  // Only one input in 16 goes to the endless source, which takes much longer: it may believe for a
  // while that there is an index of megabytes.
  const bool known_end = bytes.size() % 16 != 0;
  try {
    parse(known_end ? *source : endless, bytes.size());
  } catch (const Error& error) {
    require(is_refusal(error));
  }
}

}  // namespace tensorizer
