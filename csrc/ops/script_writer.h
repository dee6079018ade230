// torch.classes.tensorizer.Writer: a FileWriter with the types of TorchScript. A
// tensorizer_ops.Writer of Python holds one as its `script_object`.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <string>
#include <tuple>

#include "ops/translate_errors.h"
#include "transfer/files/file_writer.h"

namespace tensorizer::ops {

class ScriptWriter final : public torch::CustomClassHolder {
 public:
  ScriptWriter(std::string uri, std::optional<StringDict> options,
               std::optional<StringDict> metadata);
  ScriptWriter(std::unique_ptr<Sink> sink, std::optional<StringDict> options,
               std::optional<StringDict> metadata);

  void add(std::string name, at::Tensor tensor, std::int64_t type, std::int64_t module_index);
  void add_all(c10::List<std::string> names, std::vector<at::Tensor> tensors,
               c10::List<std::int64_t> types, c10::List<std::int64_t> module_indices);
  std::tuple<std::int64_t, std::int64_t> progress();
  void cancel();
  void flush();
  void close();
  void abort();
  // For tensorizer_ops.Writer: returns "open", "closed" or "aborted", and how many tensors were
  // added.
  std::tuple<std::string, std::int64_t> state();

 private:
  std::unique_ptr<FileWriter> writer_;
};

// Registers the class with the library that is being defined.
void define_writer(torch::Library& library);

}  // namespace tensorizer::ops
