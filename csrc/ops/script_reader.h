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
  ScriptReader(std::shared_ptr<Source> source, std::optional<StringDict> options);
  ScriptReader(std::string uri, std::optional<StringDict> options, std::shared_ptr<Source> opened);
  static c10::intrusive_ptr<ScriptReader> restore(State state);
  State state() const;
  FileReader& file() noexcept { return reader_; }

 private:
  std::optional<StringDict> options_;
  FileReader reader_;
};

// Registers Reader with the library that is being defined.
void define_reader(torch::Library& library);

}  // namespace tensorizer::ops
