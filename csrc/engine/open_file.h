// A file whose index has been read.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/file_keys.h"
#include "engine/load.h"
#include "engine/options.h"
#include "format/index.h"
#include "io/source.h"

namespace tensorizer {

class ReadAhead;

class OpenFile {
 public:
  OpenFile(std::shared_ptr<Source> source, const LoadOptions& options, Cancel& cancel);
  ~OpenFile();

  Source& source() noexcept { return *source_; }
  // Where whoever is about to read these finds them: in what was read ahead of a server's file, or
  // in the source itself.
  std::shared_ptr<Source> source_for(std::span<const LoadItem> items, bool at_once, Cancel& cancel);
  std::shared_ptr<Source> source_for(std::uint64_t begin, std::uint64_t end, Cancel& cancel);
  Index& index() noexcept { return index_; }
  const LoadOptions& options() const noexcept { return options_; }
  // The whole file in memory, where its data can be used as it lies there.
  std::shared_ptr<Mapping> map() { return index_.header().encrypted ? nullptr : source_->map(); }
  // What a load checks: all, where the file's digest was asked for.
  Verify checked(Verify asked) const noexcept { return options_.digest ? Verify::All : asked; }
  // None where no key was given.
  FileKeys* keys() noexcept { return keys_.get(); }
  // As in a state_dict, in the order of the entries.
  std::span<const std::string_view> names() const noexcept { return names_; }
  const Entry& entry(std::uint32_t number) const { return index_.entries()[number]; }
  // The entries of these names, in their order, or all of them; throws Error(NoSuchTensor).
  std::vector<std::uint32_t> select(const std::optional<std::vector<std::string>>& names);
  std::uint32_t find(std::string_view name);
  // Throws Error(InvalidArgument) if only the data of a stream tells.
  DType dtype(std::uint32_t number) const;
  // Every tensor, to be read and not kept.
  std::vector<LoadItem> all_items() const;
  // Reads the header of a tensor into `bytes`, which the result points into.
  TensorHeader read_header(std::uint32_t number, std::vector<std::byte>& bytes, Cancel& cancel);
  // Throws Error(HashMismatch) when digests of the tensors' data do not make the one that the
  // options ask for.
  void check_digest(ConstBytes data_digests) const;
  // The file and the tensor, for messages.
  std::string describe_entry(std::uint32_t number) const;

 private:
  void check_promises() const;

  const std::shared_ptr<Source> source_;
  const LoadOptions options_;
  const std::unique_ptr<FileKeys> keys_;
  Index index_;
  const std::vector<std::string_view> names_;
  const std::unique_ptr<ReadAhead> ahead_;  // null where that does not pay
  std::once_flag numbered_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
};

}  // namespace tensorizer
