// A `.tensors` file that is open for loading.
//
// Safe from any thread; loads may run at the same time, except from a sequential source, whose
// bytes come once. What was loaded outlives the reader.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/gate.h"
#include "transfer/header_cache.h"
#include "transfer/open_file.h"
#include "transfer/targets.h"

namespace tensorizer {

// What the file says about one tensor.
struct StoredTensor {
  std::string name;
  TensorType type;
  std::uint16_t module_index;
  std::optional<std::uint32_t> crc32;
  std::optional<std::array<std::byte, kSha256Size>> sha256;
  std::uint64_t header_offset;
  std::uint64_t data_offset;
  std::uint64_t data_size;
};

// What the index says about one tensor.
struct ListedTensor {
  std::string name;  // as stored
  TensorType type;
  std::uint64_t header_offset;
  std::uint64_t data_offset;
  std::uint64_t data_size;
  std::uint64_t memory_size;  // as if data had been stored, where none is
};

class Reader {
 public:
  // Opens nothing yet. `opened`: the source, if it is open already.
  explicit Reader(std::string uri, OptionList options = {},
                  std::shared_ptr<Source> opened = nullptr);
  // A file that lies in the memory of a contiguous byte tensor on the CPU.
  explicit Reader(at::Tensor data, OptionList options = {});
  // A source that somebody else has opened.
  Reader(std::unique_ptr<Source> source, OptionList options);
  ~Reader();

  const std::string& uri() const noexcept { return uri_; }
  const OptionList& options() const noexcept { return option_list_; }
  bool in_memory() const noexcept { return data_.defined(); }
  // Whether nothing but this reader knows where the file is.
  bool is_given() const noexcept { return given_; }

  // For messages: the URI without secrets, quoted.
  std::string label();
  std::vector<std::string> names();
  std::vector<std::int64_t> shape(const std::string& name);
  c10::ScalarType dtype(const std::string& name);
  StoredTensor stored(const std::string& name);
  // Everything, in the order of the file: what follows knows tensors by their numbers in it.
  std::vector<ListedTensor> list();
  FileHeader header();

  // Every tensor of the file, in its order, or the named ones, in theirs.
  std::vector<at::Tensor> load(const std::optional<std::vector<std::string>>& names = std::nullopt,
                               const LoadRequest& request = {});
  // By their numbers in the file, and keeps what their headers say, also when this is closed.
  std::vector<at::Tensor> load_numbered(const std::optional<std::vector<std::uint32_t>>& numbers,
                                        const LoadRequest& request);
  const HeaderCache& headers() const noexcept { return headers_; }
  // Whether a tensor has the digests that were saved of the one that was loaded.
  bool matches(std::uint32_t number, const at::Tensor& tensor);
  // Bytes of the file as they stand there.
  at::Tensor bytes(std::uint64_t offset, std::uint64_t size);
  // Checks every name, shape and dtype before it touches any output. With `cast`, a real floating
  // tensor is cast to the dtype of its output.
  void load_into(const std::vector<std::string>& names, const std::vector<at::Tensor>& outputs,
                 Verify verify = Verify::None, std::int64_t threads = 0, bool cast = false);
  // Throws at the first tensor that is not what was saved.
  void verify(Verify verify = Verify::All, std::int64_t threads = 0);
  // One digest for all that the file holds, plain or encrypted, in hexadecimal: what the option
  // 'digest' asks for. Every byte of data is read.
  std::string digest(std::int64_t threads = 0);

  // Writes the file anew, to another place.
  void rewrite(const std::string& to, HashKinds hashes, const OptionList& options,
               std::int64_t threads = 0);

  // The bytes that the running job has moved, and is to move.
  std::pair<std::uint64_t, std::uint64_t> progress() const;
  // What has been loaded since the file was opened.
  struct Stats {
    std::uint64_t loads = 0;
    std::uint64_t tensors = 0;
    std::uint64_t bytes = 0;
    double seconds = 0;
    ComputeTime computed;
    SourceStats source;
  };
  Stats stats() const;
  // Ends the running jobs; their callers see Error(Cancelled).
  void cancel();
  // Nothing can be loaded afterwards.
  void close();

 private:
  class Job;

  std::shared_ptr<OpenFile> file();
  std::shared_ptr<Source> open(const LoadOptions& options, Cancel& cancel);
  std::vector<at::Tensor> load(OpenFile& file, std::span<const std::uint32_t> selected,
                               const LoadRequest& request);
  void run(OpenFile& file, Targets& targets, Verify verify, std::int64_t threads,
           const ExpectedDigests* expected_digests);
  // What the options promise included.
  void run(OpenFile& file, Targets& targets, Verify verify, std::int64_t threads);
  void count(OpenFile& file, const Progress& progress, std::size_t tensors, double seconds);

  const std::string uri_;
  const at::Tensor data_;
  const bool given_ = false;
  const OptionList option_list_;
  HeaderCache headers_;

  Gate opening_{
      "the reader is opening its file on this thread: what runs meanwhile, as a signal handler "
      "does, can only cancel() or close() it"};
  std::shared_ptr<Source> source_;  // until it is opened, by who opens
  mutable std::mutex mutex_;        // guards what follows
  std::shared_ptr<OpenFile> file_;
  bool closed_ = false;
  std::vector<Job*> jobs_;
  std::pair<std::uint64_t, std::uint64_t> last_progress_{0, 0};
  Stats stats_;  // but those of the source, while it is open
  SourceStats logged_;
};

}  // namespace tensorizer
