#include "transfer/open_file.h"

#include "base/error.h"
#include "engine/read_index.h"
#include "transfer/dtype.h"

namespace tensorizer {

OpenFile::OpenFile(std::unique_ptr<Source> source, const LoadOptions& options, Cancel& cancel)
    : source_(std::move(source)),
      index_(read_index(*source_, cancel)),
      names_(clean_names(index_.entries())),
      options_(options) {}

std::uint32_t OpenFile::find(std::string_view name) {
  std::call_once(numbered_, [&] {
    numbers_.reserve(names_.size());
    for (std::uint32_t i = 0; i < names_.size(); ++i) numbers_[names_[i]] = i;
  });
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  throw Error(ErrorKind::NoSuchTensor, source_->label() + " has no tensor " + quote(name) +
                                           " among its " + std::to_string(names_.size()) +
                                           "; names() lists them");
}

std::vector<std::uint32_t> OpenFile::select(const std::optional<std::vector<std::string>>& names) {
  std::vector<std::uint32_t> selected(names ? names->size() : names_.size());
  for (std::uint32_t i = 0; i < selected.size(); ++i) selected[i] = names ? find((*names)[i]) : i;
  return selected;
}

c10::ScalarType OpenFile::dtype(std::uint32_t number) const {
  if (const std::optional<DType> stored = entry(number).dtype) return scalar_type(*stored);
  throw Error(ErrorKind::InvalidArgument,
              describe_entry(number) +
                  ": its dtype stands in front of its data only, and this source gives its bytes "
                  "once: load the tensor to see it");
}

std::string OpenFile::describe_entry(std::uint32_t number) const {
  return source_->label() + ": " + describe(names_[number], number);
}

}  // namespace tensorizer
