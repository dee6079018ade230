// Saves tensors to a `.tensors` file.
#pragma once

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "transfer/options.h"
#include "transfer/saving.h"

namespace tensorizer {

// Saves a whole file at once. The target appears when all of it is written, or stays as it was.
void save(const std::string& uri, const std::vector<std::string>& names,
          const std::vector<at::Tensor>& tensors, HashKinds hashes, std::int64_t threads,
          const OptionList& options);
// The same for who watches it.
void save(const std::string& uri, const std::vector<std::string>& names,
          const std::vector<at::Tensor>& tensors, HashKinds hashes, std::int64_t threads,
          const OptionList& options, Progress& progress, Cancel& cancel);

// A tensor with all that the file says of it.
struct AddedTensor {
  std::string name;  // as stored
  at::Tensor tensor;
  TensorType type = TensorType::StateDictEntry;
  std::uint16_t module_index = 0;
};

// Takes tensors one or some at a time. The target appears with close(); a Writer that goes without
// it, and one whose add() failed, leaves everything as it was.
class Writer {
 public:
  explicit Writer(const std::string& uri, const OptionList& options = {});
  // To a sink that somebody else has opened.
  Writer(std::unique_ptr<Sink> sink, const OptionList& options);
  ~Writer();

  void add(const std::string& name, const at::Tensor& tensor,
           TensorType type = TensorType::StateDictEntry, std::uint16_t module_index = 0);
  // Many small ones at once are as fast as a large one. What cannot be saved is refused before any
  // of them is written.
  void add(std::span<const AddedTensor> tensors);
  // Makes a target that is written in place a whole file of what has come so far, which it is
  // until the next add(). Others appear with close() only.
  void flush();
  void close();
  void abort();

  // The bytes that have been written, and those that add() has been given so far.
  std::pair<std::uint64_t, std::uint64_t> progress() const;
  // Ends the running add() or close(), whose caller sees Error(Cancelled).
  void cancel();

 private:
  enum class State { Open, Closed, Aborted };
  class Job;
  using OpenSink = std::function<std::unique_ptr<Sink>(const SinkOptions& options, Cancel& cancel)>;

  Writer(const OptionList& options, const OpenSink& open);

  // A child of fork has neither the sink's threads nor any right to its target.
  bool is_foreign() const { return process_ != getpid(); }
  std::unique_lock<std::mutex> lock();
  void must_be_open() const;
  std::vector<Saving> prepare(std::span<const AddedTensor> tensors, Staging& staging);
  void reserve();
  void write_ends(Cancel& cancel);
  void abort_locked() noexcept;

  const WriterOptions options_;
  const int threads_;
  const pid_t process_ = getpid();
  Progress progress_;

  std::mutex mutex_;  // one call at a time; guards what follows
  State state_ = State::Open;
  std::unique_ptr<Sink> sink_;
  std::optional<std::uint64_t> reserved_;  // for the prefix
  std::unique_ptr<Layout> layout_;
  std::unordered_set<std::string> names_;

  mutable std::mutex cancel_mutex_;
  Cancel* running_ = nullptr;
};

}  // namespace tensorizer
