// save() and Writer for C++ programs: save tensors to a `.tensors` file, or to a safetensors file
// if the name of the target ends with `.safetensors` or the option `format` says so.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorizer_ops/options.h"
#include "tensorizer_ops/stored_tensor.h"

namespace tensorizer {

class FileWriter;

// Saves a whole file at once. The target appears, or is replaced, when all of it is written; if
// anything fails, it stays as it was. `threads` compute; 0 is every CPU that the process may use.
//
// Throws Error: InvalidArgument for a tensor, name or option that cannot be saved; NotFound,
// PermissionDenied, OutOfSpace, Unavailable, TimedOut and SystemError for a target that cannot be
// written; OutOfMemory; and what the interrupt hook throws (hooks.h). Thread-safe; the tensors must
// not be written to meanwhile.
void save(const std::string& uri, const std::vector<std::string>& names,
          const std::vector<at::Tensor>& tensors, HashKinds hashes, std::int64_t threads,
          const OptionList& options, const Metadata& metadata = {});

// A tensor with all that the file says about it.
struct AddedTensor {
  std::string name;
  at::Tensor tensor;
  TensorType type = TensorType::StateDictEntry;
  std::uint16_t module_index = 0;
};

// A file that takes its tensors a few at a time. The target appears with close(). A Writer that is
// destroyed without it, and one whose add() failed, leaves the target as it was.
//
// Thread-safe: a call waits for the call that runs on another thread. Code that runs inside a call
// and on its thread, as the interrupt hook does, never waits: there add() and flush() throw
// Error(InvalidArgument), and abort() and close() end the call, which throws Error(Cancelled).
//
// Methods throw what save() throws. In a child of fork() all of them throw Error(InvalidArgument).
class Writer {
 public:
  // Opens the target. Options beyond those of save(): `hashes`, `threads`, `expected_tensors`,
  // `part_size`. Throws Error(InvalidArgument) for a pipe: it takes bytes in order, and the index,
  // which a Writer knows last, comes first.
  explicit Writer(const std::string& uri, const OptionList& options = {},
                  const Metadata& metadata = {});

  ~Writer();
  // `other` may then only be destroyed or assigned to.
  Writer(Writer&& other) noexcept;
  Writer& operator=(Writer&& other) noexcept;

  // Adds one tensor. Its memory may change once this has returned. Throws Error(InvalidArgument),
  // before anything is written, for a name that was added before, and if the header of a
  // safetensors file has no room for it, or the index of an object in S3 whose data has been sent;
  // the Writer can then still be closed.
  void add(const std::string& name, const at::Tensor& tensor,
           TensorType type = TensorType::StateDictEntry, std::uint16_t module_index = 0);

  // Adds many tensors; many small ones are as fast as a large one. Checks all of them before it
  // writes any. With the option `share`, those that are the same memory are stored once.
  void add(std::span<const AddedTensor> tensors);

  // Makes a whole file of the tensors so far, until the next add(), if the target is written in
  // place, as a descriptor is. Does nothing for a target that appears with close().
  void flush();

  // Completes the file. A second close() does nothing.
  void close();

  // Drops the file. Ends a call that runs on another thread and waits for it.
  void abort();

  // Returns how many bytes are written, and how many add() has received so far.
  std::pair<std::uint64_t, std::uint64_t> progress() const;

  // Ends the running call, which throws Error(Cancelled).
  void cancel();

 private:
  std::unique_ptr<FileWriter> writer_;
};

}  // namespace tensorizer
