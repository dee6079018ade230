// torch.classes.tensorizer.Reader.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <mutex>
#include <tuple>

#include "ops/translate_errors.h"
#include "transfer/files/file_reader.h"

namespace tensorizer::ops {

// Ends one call that runs on another thread.
class CancelClass final : public torch::CustomClassHolder {
 public:
  // Runs `body` with a Cancel of the current thread, which cancel() requests.
  template <typename Body>
  void run(const Body& body) {
    const auto cancel = std::make_shared<Cancel>();
    {
      const std::lock_guard lock(mutex_);
      running_ = cancel;
      if (requested_) cancel->request();
    }
    body(*cancel);
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    requested_ = true;
    if (running_) running_->request();
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Cancel> running_;
  bool requested_ = false;
};

class ReaderClass final : public torch::CustomClassHolder {
 public:
  // The pickled state: the URI and the options, or the file itself if it is in memory.
  using State = std::tuple<std::string, StringDict, std::optional<at::Tensor>>;

  ReaderClass(std::string uri, std::optional<StringDict> options);
  ReaderClass(const at::Tensor& data, std::optional<StringDict> options);
  ReaderClass(std::unique_ptr<Source> source, std::optional<StringDict> options);
  ReaderClass(std::string uri, std::optional<StringDict> options, std::shared_ptr<Source> opened);
  static c10::intrusive_ptr<ReaderClass> restore(State state);
  State state() const;

  c10::List<std::string> names();
  StringDict metadata();
  // Serves safe_open. Returns null if the file has no metadata, and not if they have no text.
  std::optional<StringDict> stored_metadata();
  std::vector<std::int64_t> shape(std::string name);
  c10::ScalarType dtype(std::string name);
  StringDict stored(std::string name);
  TensorDict load(std::optional<c10::List<std::string>> names, std::optional<c10::Device> device,
                  std::optional<c10::ScalarType> dtype, std::string verify, bool copy,
                  std::int64_t threads);
  using Integers = std::vector<std::int64_t>;
  std::vector<at::Tensor> load_slices(c10::List<std::string> names, Integers tensors, Integers dims,
                                      Integers starts, Integers lengths,
                                      std::optional<Integers> steps,
                                      std::optional<c10::Device> device,
                                      std::optional<c10::ScalarType> dtype, std::string verify,
                                      bool copy, std::int64_t threads);
  void load_into(c10::List<std::string> names, std::vector<at::Tensor> out, std::string verify,
                 std::int64_t threads, bool cast);
  // The tensors, and the missing and the unexpected keys.
  using Filled =
      std::tuple<std::vector<at::Tensor>, c10::List<std::string>, c10::List<std::string>>;
  // Implements Reader::fill().
  Filled fill(c10::List<std::string> names, std::vector<at::Tensor> tensors,
              std::optional<c10::Device> device, bool strict, std::string verify,
              std::int64_t threads, bool cast, std::optional<c10::ScalarType> dtype);
  // The methods from here to bytes() serve TensorDeserializer.
  //
  // Returns, of all tensors, the stored names, types, offsets of headers and of data, sizes of the
  // data and of the loaded tensors, and the numbers of the tensors that the data is stored with.
  using Numbers = c10::List<std::int64_t>;
  std::tuple<c10::List<std::string>, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers> list();
  // Returns the version, the feature flags, the file size that the header claims, and the number of
  // tensors.
  std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t> header();
  // Loads the tensors of these numbers, or all. Also returns the module indices in their headers.
  std::tuple<std::vector<at::Tensor>, Numbers> load_numbered(std::optional<Numbers> numbers,
                                                             std::optional<c10::Device> device,
                                                             std::optional<c10::ScalarType> dtype,
                                                             std::string verify, bool copy,
                                                             std::int64_t threads);
  bool matches(std::int64_t number, at::Tensor tensor);
  void verify_memory(c10::List<std::string> names, std::vector<at::Tensor> tensors,
                     std::string verify);
  at::Tensor bytes(std::int64_t offset, std::int64_t size);
  // The next three serve tensorizer_ops.Reader. Returns torch's name of the type, "float32".
  std::string type_name(std::string name);
  void prefetch(std::optional<c10::List<std::string>> names,
                c10::intrusive_ptr<CancelClass> cancel);
  void verify(std::string verify, std::int64_t threads);
  // The next five serve tensorizer_ops.distributed.
  void need_until(std::string name, std::int64_t element);
  void load_ranges(c10::List<std::string> names, Integers starts, std::vector<at::Tensor> outputs,
                   std::optional<at::Tensor> arrived, std::string verify, std::int64_t threads);
  std::int64_t part_size(std::string verify);
  std::optional<std::string> remote_version();
  bool can_map();
  std::string digest(std::int64_t threads, std::int64_t version, bool listed);
  std::tuple<std::int64_t, std::int64_t> update(std::string uri, std::int64_t threads);
  void rewrite(std::string uri, std::string hashes, std::optional<StringDict> options,
               std::int64_t threads);
  // Serve tracing; see transfer/files/tracing.h.
  std::optional<std::string> traced_version();
  c10::List<std::string> trace(c10::List<std::string> names, std::optional<c10::ScalarType> dtype);
  c10::Dict<std::string, double> stats();
  std::tuple<std::int64_t, std::int64_t> progress();
  void cancel();
  void close();

 private:
  std::optional<StringDict> options_;
  FileReader reader_;
};

// Registers the class with the library that is being defined.
void define_reader(torch::Library& library);

}  // namespace tensorizer::ops
