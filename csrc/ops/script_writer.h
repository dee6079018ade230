// torch.classes.tensorizer.Writer: a FileWriter with the types of TorchScript. A
// tensorizer_ops.Writer of Python holds one as its `script_object`.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <string>

#include "ops/translate_errors.h"
#include "transfer/files/file_writer.h"

namespace tensorizer::ops {

class ScriptWriter final : public torch::CustomClassHolder {
 public:
  ScriptWriter(std::string uri, std::optional<StringDict> options,
               std::optional<StringDict> metadata);
  ScriptWriter(std::unique_ptr<Sink> sink, std::optional<StringDict> options,
               std::optional<StringDict> metadata);

  FileWriter& file() noexcept { return *writer_; }

 private:
  std::unique_ptr<FileWriter> writer_;
};

// Registers the class with the library that is being defined.
void define_writer(torch::Library& library);

}  // namespace tensorizer::ops
