// A file whose index has been read.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/index.h"
#include "io/source.h"
#include "transfer/options.h"

namespace tensorizer {

class OpenFile {
 public:
  OpenFile(std::unique_ptr<Source> source, const LoadOptions& options, Cancel& cancel);

  Source& source() noexcept { return *source_; }
  Index& index() noexcept { return index_; }
  const LoadOptions& options() const noexcept { return options_; }
  // As in a state_dict, in the order of the entries.
  std::span<const std::string_view> names() const noexcept { return names_; }
  const Entry& entry(std::uint32_t number) const { return index_.entries()[number]; }
  // The entries of these names, in their order, or all of them; throws Error(NoSuchTensor).
  std::vector<std::uint32_t> select(const std::optional<std::vector<std::string>>& names);
  std::uint32_t find(std::string_view name);
  // Throws where only the data of a stream will tell.
  c10::ScalarType dtype(std::uint32_t number) const;
  // The file and the tensor, for messages.
  std::string describe_entry(std::uint32_t number) const;

 private:
  const std::unique_ptr<Source> source_;
  Index index_;
  const std::vector<std::string_view> names_;
  const LoadOptions options_;
  std::once_flag numbered_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
};

}  // namespace tensorizer
