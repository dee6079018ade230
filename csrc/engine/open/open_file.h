// An open file whose catalogue has been read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/digest/file_keys.h"
#include "engine/load/load.h"
#include "engine/open/whole_files.h"
#include "engine/options.h"
#include "format/catalogue.h"
#include "format/name_table.h"
#include "io/source.h"

namespace tensorizer {

class PrefetchCache;
class ReadAhead;

// How a job uses a file. All: it takes every byte, and gives nothing out before source().confirm()
// has returned. Parts: it does anything else. AnyOrder: parts, some of them more than once.
enum class Wants : std::uint8_t { All, Parts, AnyOrder };

// Throws InvalidArgument for parts of a source that checks_at_end(), and for any order of one that
// is sequential(). OpenFile asks before it reads a byte, for which it might wait for ever.
void check_wants(const Source& source, Wants wants);

class OpenFile {
 public:
  OpenFile(std::shared_ptr<Source> source, const LoadOptions& options, Cancel& cancel,
           Wants wants = Wants::Parts);
  ~OpenFile();

  Source& source() noexcept { return *source_; }
  // Returns the source to read these items from: memory with bytes of a server's file that were
  // read ahead, or the file's own source. `at_once` says whether several reads may run at the same
  // time.
  std::shared_ptr<Source> source_for(std::span<const LoadItem> items, bool at_once, Cancel& cancel);
  std::shared_ptr<Source> source_for(std::uint64_t begin, std::uint64_t end, Cancel& cancel);
  // Like source_for(), for a load, which also uses bytes that prefetch() has fetched.
  std::shared_ptr<Source> source_to_load(std::span<const LoadItem> items, bool at_once,
                                         Cancel& cancel);
  // Returns whether the items are all data, and none is used before the end of the load.
  bool takes_all(std::span<const LoadItem> items) const;
  // Returns the source for a load that verifies by digests that a server keeps of whole files,
  // because the files themselves have none; null if there are no such digests, or a load verifies
  // otherwise. Throws InvalidArgument unless the items are all data.
  std::shared_ptr<WholeFilesSource> source_of_whole(std::span<const LoadItem> items,
                                                    Verify verify) const;
  // Fetches the data of tensors for later loads (engine/open/prefetch_cache.h).
  void prefetch(std::vector<std::uint32_t> numbers, Progress& progress, Cancel& cancel);
  // Returns whether fetched bytes use their half of the memory ceiling.
  bool keeps_prefetched() const;
  // Says that nothing behind the first `size` bytes of a tensor's data will be needed, so that it
  // is not read ahead.
  void need_until(std::uint32_t number, std::uint64_t size);
  Catalogue& catalogue() noexcept { return *catalogue_; }
  const LoadOptions& options() const noexcept { return options_; }
  // Returns a mapping of the file; null if it cannot be mapped, is encrypted, or the option `io`
  // says to read it.
  std::shared_ptr<Mapping> map();
  // Returns what a load checks: everything if the options ask for the file's digest.
  Verify checked(Verify asked) const noexcept { return options_.digest ? Verify::All : asked; }
  // Returns the size of the chunks that are decrypted and verified by themselves. 0 if only whole
  // tensors can be verified, 1 if nothing is.
  std::uint64_t chunk_size(Verify asked) const;
  // Returns the keys of the file; null if no key was given.
  FileKeys* keys() noexcept { return keys_.get(); }
  // Returns the names as in a state_dict. The methods below take the number of a name in this list;
  // tied names have the same entry.
  std::span<const std::string_view> names() const noexcept { return names_; }
  std::uint32_t entry_number(std::uint32_t number) const { return catalogue_->named(number).entry; }
  const Entry& entry(std::uint32_t number) const {
    return catalogue_->entries()[entry_number(number)];
  }
  // Returns a copy of the metadata of the user, in the order of the file; null if it has none.
  std::optional<Metadata> metadata() const;
  // Returns the numbers of these names, in their order, or of all. Throws NoSuchTensor.
  std::vector<std::uint32_t> select(const std::optional<std::vector<std::string>>& names);
  std::uint32_t find(std::string_view name);
  // Returns the dtype of a tensor. Throws InvalidArgument if only the tensor's header has it and
  // the source is a stream, whose tensor headers are not read in advance.
  DType dtype(std::uint32_t number) const;
  // Returns an item for every entry, whose data is checked and not kept.
  std::vector<LoadItem> all_items() const;
  // Reads the details of a tensor. Its header goes to `header`, which the result points into.
  TensorDetails read_details(std::uint32_t number, std::vector<std::byte>& header, Cancel& cancel);
  // Returns the kinds of hashes in the file, of whole tensors those of the first. Reads nothing
  // ahead. Throws InvalidArgument if a stream has passed the header of that tensor.
  HashKinds hashes(Cancel& cancel);
  // Returns the digests that make the one that the options ask for: those that the file lists, if
  // it does.
  DataDigests pinned_digests() const;
  // Throws HashMismatch if they do not make it.
  void check_digest(const DataDigests& digests, Cancel& cancel) const;
  // Returns the names of the file and the tensor, for messages.
  std::string describe_entry(std::uint32_t number) const;

 private:
  void check_promises(Cancel& cancel) const;

  const std::shared_ptr<Source> source_;
  const LoadOptions options_;
  const std::unique_ptr<FileKeys> keys_;
  std::vector<WholeFile> whole_files_;  // empty unless a server keeps a digest of each file
  const std::unique_ptr<Catalogue> catalogue_;
  const std::vector<std::string_view> names_;
  const std::unique_ptr<ReadAhead> ahead_;  // null for local files
  const std::shared_ptr<PrefetchCache> prefetch_cache_;
  std::atomic<int> searches_ = 0;  // for names, without a table
  std::once_flag tabled_;
  std::optional<NameTable> table_;  // of `names_`, made when many names are looked up
};

}  // namespace tensorizer
