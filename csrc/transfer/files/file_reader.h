// A file that is open for loading, behind each Reader: those of C++ programs (api), of TorchScript
// (ops/script_reader.h) and of Python. Methods that Reader has too have the contract that
// tensorizer_ops/reader.h declares.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/gate.h"
#include "base/redaction.h"
#include "engine/open/open_file.h"
#include "engine/rewrite/rewrite.h"
#include "tensorizer_ops/reader.h"
#include "transfer/files/header_cache.h"
#include "transfer/files/load_counters.h"
#include "transfer/files/targets.h"
#include "transfer/memory/held_memory.h"

namespace tensorizer {

// How the tensors of a new file differ from those of the original.
struct TensorChanges {
  NewNames names{};
  std::optional<c10::ScalarType> dtype{};  // as in LoadRequest
};

class FileReader {
 public:
  // `opened` is the source of the URI if it is already open, or null.
  explicit FileReader(std::string uri, OptionList options = {},
                      std::shared_ptr<Source> opened = nullptr);
  explicit FileReader(const at::Tensor& data, OptionList options = {});
  // Reads a source that has no URI.
  FileReader(std::shared_ptr<Source> source, OptionList options);
  ~FileReader();

  const std::string& uri() const noexcept { return uri_; }
  const OptionList& options() const noexcept { return option_list_; }
  // The file, if it lies in memory; undefined otherwise.
  const at::Tensor& data() const noexcept { return data_; }
  // Returns whether the reader was made from a Source without a URI, so that no other reader can
  // open the same file.
  bool is_given() const noexcept { return given_; }

  // Returns the URI without secrets, quoted, for messages.
  std::string label();
  // Returns the file for a load of all of its data, before which nothing of it is given out.
  std::shared_ptr<OpenFile> file_for_all() { return file(Wants::All); }
  // Returns the source, which knows what not to quote in messages (RedactedQuotes).
  std::shared_ptr<const Redactor> redactor();
  std::vector<std::string> names();
  std::vector<std::int64_t> shape(const std::string& name);
  c10::ScalarType dtype(const std::string& name);
  StoredTensor stored(const std::string& name);
  std::vector<ListedTensor> list();
  FormatInfo format();
  // Returns null if the file has no metadata.
  std::optional<Metadata> metadata();

  // `traced` holds the type and shape that tracing saw of each tensor (tracing.h). Throws
  // Error(InvalidArgument) if a tensor differs from it. Outputs of a graph must not share memory.
  std::vector<at::Tensor> load(const std::optional<std::vector<std::string>>& names,
                               const LoadRequest& request,
                               const std::optional<std::vector<std::string>>& traced = {},
                               Ties ties = Ties::Shared);
  std::vector<at::Tensor> load_slices(const std::vector<std::string>& names,
                                      const std::vector<SlicedDimension>& slices,
                                      const LoadRequest& request,
                                      const std::optional<std::vector<std::string>>& traced = {},
                                      Ties ties = Ties::Shared);
  // Loads tensors by their numbers in the file and keeps what their headers say in headers(), which
  // stays valid after close().
  std::vector<at::Tensor> load_numbered(const std::optional<std::vector<std::uint32_t>>& numbers,
                                        const LoadRequest& request);
  const HeaderCache& headers() const noexcept { return headers_; }
  // Returns whether the header of a loaded tensor has digests that suffice() (verify_memory.h).
  bool header_suffices(std::uint32_t number) const;
  // Returns whether the data of `tensor` has the digests that were saved for tensor `number`, or
  // that tensor's bytes, which are loaded, if its header does not suffice.
  // Throws Error(InvalidFormat) if that tensor's header was not kept or has no digests.
  bool matches(std::uint32_t number, const at::Tensor& tensor);
  // Compares tensors in memory with the file's digests of them (verify_memory.h).
  void verify_memory(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors,
                     Verify verify);
  // Returns raw bytes of the file.
  at::Tensor bytes(std::uint64_t offset, std::uint64_t size);
  void load_into(const std::vector<std::string>& names, const std::vector<at::Tensor>& outputs,
                 Verify verify, std::int64_t threads, bool cast);
  // Serve loads that several processes share. load_ranges() fills contiguous outputs with ranges of
  // elements, counted in row-major order from `starts` on. `arrived` has a byte for each, which
  // becomes 1 when the range has arrived, while others are still loaded. chunk_size() is that of
  // OpenFile.
  void load_ranges(const std::vector<std::string>& names, const std::vector<std::int64_t>& starts,
                   const std::vector<at::Tensor>& outputs, const std::optional<at::Tensor>& arrived,
                   Verify verify, std::int64_t threads);
  std::uint64_t chunk_size(Verify verify);
  // Returns the size of chunks of a tensor, and the SHA-256 of each, one a row; 0 and no rows if
  // the file lists none of its data in memory.
  std::tuple<std::int64_t, at::Tensor> chunk_digests(const std::string& name);
  // Says that no element of the file from this one on will be needed.
  void need_until(const std::string& name, std::int64_t element);
  // Returns the version of a file on a server; null if there is none.
  std::optional<std::string> remote_version();
  // Returns the root digest of the model whose signature is compared with what is read; null if
  // none is.
  std::optional<std::string> signed_as();
  // Lets no file change these tensors, which it will fill, if what it gives is signed
  // (detach_from_files()). The calls that fill tensors do so themselves.
  void detach_if_signed(const std::vector<at::Tensor>& tensors);
  // Returns whether tensors on the CPU can share pages with the file.
  bool can_map();
  void prefetch(const std::optional<std::vector<std::string>>& names);
  // `given` may end this call alone, and cancel() ends it as well.
  void prefetch(const std::optional<std::vector<std::string>>& names, Cancel& given);
  void verify(Verify verify, std::int64_t threads);
  std::string digest(std::int64_t threads, std::int64_t version, bool listed);
  void rewrite(const std::string& to, HashKinds hashes, const OptionList& options,
               std::int64_t threads, TensorChanges changes = {});
  Updated update(const std::string& to, std::int64_t threads);
  // Write deltas and apply them (engine/delta/delta.h); the reader is that of the base, or of the
  // delta. Without a target, the new model replaces the base, and is stored like it; returns false
  // if the base is the new model already.
  void make_delta(FileReader& fresh, const std::string& to, HashKinds hashes,
                  const OptionList& options, std::int64_t threads);
  bool apply(FileReader& base, const std::optional<std::string>& to,
             const std::optional<HashKinds>& hashes, const OptionList& options,
             std::int64_t threads);
  // Returns whether another file with the same tensors tells the same besides: the metadata, but
  // for what makes a file a delta, and in a file of this format the names, types and ties.
  bool tells_the_same(FileReader& other);
  bool apply_in_memory(const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors, std::int64_t threads);

  std::pair<std::uint64_t, std::uint64_t> progress() const;
  LoadStats stats() const;
  void cancel();
  void close();

 private:
  class Job;

  // `given` may end the call, if this one opens the file.
  std::shared_ptr<OpenFile> file(Wants wants = Wants::Parts, Cancel* given = nullptr);
  std::shared_ptr<Source> open(const LoadOptions& options, Cancel& cancel);
  // Throws Error(InvalidArgument) if the file in memory is no longer where it was.
  void check_memory() const;
  std::vector<at::Tensor> load(OpenFile& file, std::span<const std::uint32_t> selected,
                               const LoadRequest& request, Ties ties, bool headers,
                               const TensorSlices& slices = {});
  // Loads a tensor to the CPU, to compare others with it.
  at::Tensor load_to_compare(OpenFile& file, std::uint32_t number);
  void run(OpenFile& file, Targets& targets, Verify verify, std::int64_t threads, Job& job,
           DataDigests* data_digests);
  // Also checks the digest that the options ask for.
  void run(OpenFile& file, Targets& targets, Verify verify, std::int64_t threads, Job& job);

  const std::string uri_;
  // Another tensor over the caller's memory: the caller's own may get other memory at any time.
  std::shared_ptr<const HeldMemory> held_;  // the memory of data_
  const at::Tensor data_;
  const ConstBytes bytes_;  // of data_
  const bool given_ = false;
  const OptionList option_list_;
  HeaderCache headers_;
  LoadCounters counters_;

  Gate opening_{
      "the reader is opening its file on this thread: code that runs inside this call, such as a "
      "signal handler, can only cancel() or close() the reader"};
  // A source that the constructor received, until the file is opened. Used only inside `opening_`.
  std::shared_ptr<Source> source_;
  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<OpenFile> file_;
  bool closed_ = false;
  std::vector<Job*> jobs_;
  std::pair<std::uint64_t, std::uint64_t> last_progress_{0, 0};
  SourceStats closed_source_;
};

}  // namespace tensorizer
