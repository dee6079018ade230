// torch.classes.tensorizer.Reader: a FileReader with the types of TorchScript. A
// tensorizer_ops.Reader of Python holds one as its `script_object`.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <tuple>

#include "ops/translate_errors.h"
#include "transfer/files/file_reader.h"

namespace tensorizer::ops {

class ScriptReader final : public torch::CustomClassHolder {
 public:
  // The pickled state: the URI and the options, or the file itself if it is in memory.
  using State = std::tuple<std::string, StringDict, std::optional<at::Tensor>>;

  ScriptReader(std::string uri, std::optional<StringDict> options);
  ScriptReader(const at::Tensor& data, std::optional<StringDict> options);
  ScriptReader(std::unique_ptr<Source> source, std::optional<StringDict> options);
  ScriptReader(std::string uri, std::optional<StringDict> options, std::shared_ptr<Source> opened);
  static c10::intrusive_ptr<ScriptReader> restore(State state);
  State state() const;
  FileReader& file() noexcept { return reader_; }

  c10::List<std::string> names();
  StringDict metadata();
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
  std::string digest(std::int64_t threads, std::int64_t version, bool listed);
  std::tuple<std::int64_t, std::int64_t> update(std::string uri, std::int64_t threads);
  void rewrite(std::string uri, std::string hashes, std::optional<StringDict> options,
               std::int64_t threads);
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
