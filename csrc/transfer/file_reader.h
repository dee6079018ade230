// What the public Reader is made of; its methods of the same names do what those do.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/gate.h"
#include "engine/open_file.h"
#include "tensorizer_ops/reader.h"
#include "transfer/header_cache.h"
#include "transfer/targets.h"

namespace tensorizer {

class FileReader {
 public:
  // `opened` is the source of the URI, if it is open already.
  explicit FileReader(std::string uri, OptionList options = {},
                      std::shared_ptr<Source> opened = nullptr);
  explicit FileReader(at::Tensor data, OptionList options = {});
  // A source that has no URI.
  FileReader(std::unique_ptr<Source> source, OptionList options);
  ~FileReader();

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
  std::vector<ListedTensor> list();
  FileHeader header();

  // `traced` is what a program that was traced knows of each tensor (tracing.h); a tensor that
  // differs is an error.
  std::vector<at::Tensor> load(const std::optional<std::vector<std::string>>& names,
                               const LoadRequest& request,
                               const std::optional<std::vector<std::string>>& traced = {});
  // Loads tensors by their numbers in the file, and keeps what their headers say, also when this is
  // closed.
  std::vector<at::Tensor> load_numbered(const std::optional<std::vector<std::uint32_t>>& numbers,
                                        const LoadRequest& request);
  const HeaderCache& headers() const noexcept { return headers_; }
  // Whether a tensor has the digests that were saved of the one that was loaded.
  bool matches(std::uint32_t number, const at::Tensor& tensor);
  // Bytes of the file as they stand there.
  at::Tensor bytes(std::uint64_t offset, std::uint64_t size);
  void load_into(const std::vector<std::string>& names, const std::vector<at::Tensor>& outputs,
                 Verify verify, std::int64_t threads, bool cast);
  void verify(Verify verify, std::int64_t threads);
  std::string digest(std::int64_t threads);
  void rewrite(const std::string& to, HashKinds hashes, const OptionList& options,
               std::int64_t threads);

  std::pair<std::uint64_t, std::uint64_t> progress() const;
  LoadStats stats() const;
  void cancel();
  void close();

 private:
  class Job;

  std::shared_ptr<OpenFile> file();
  std::shared_ptr<Source> open(const LoadOptions& options, Cancel& cancel);
  std::vector<at::Tensor> load(OpenFile& file, std::span<const std::uint32_t> selected,
                               const LoadRequest& request, bool headers);
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
  LoadStats stats_;  // without those of the source
  SourceStats closed_source_;
  SourceStats logged_;
};

}  // namespace tensorizer
