// Saves tensors to a `.tensors` file.
#pragma once

#include <ATen/core/Tensor.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/gate.h"
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
//
// From any thread; one call waits for another. What runs inside a call and on its thread, as a
// signal handler does, waits for nothing: there add() and flush() throw Error(InvalidArgument), and
// abort() and close() end the call, which leaves everything as it was and throws Error(Cancelled).
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
  // Throws Error(Cancelled) inside another call.
  void close();
  void abort();

  // The bytes that have been written, and those that add() has been given so far.
  std::pair<std::uint64_t, std::uint64_t> progress() const;
  // Ends the running add() or close(), whose caller sees Error(Cancelled).
  void cancel();

 private:
  enum class State { Open, Closed, Aborted };
  class Call;
  using OpenSink = std::function<std::unique_ptr<Sink>(const SinkOptions& options, Cancel& cancel)>;

  Writer(const OptionList& options, const OpenSink& open);

  // A child of fork has neither the sink's threads nor any right to its target.
  bool is_foreign() const { return process_ != getpid(); }
  void must_be_ours() const;
  void must_be_open() const;
  std::vector<Saving> prepare(std::span<const AddedTensor> tensors, Staging& staging);
  void begin();
  // Reserves `prefix_size` for the prefix if it needs less and the sink takes more.
  void write_ends(std::uint64_t prefix_size, Cancel& cancel);
  void abort_now() noexcept;

  const WriterOptions options_;
  const int threads_;
  const pid_t process_ = getpid();
  Progress progress_;

  // Who is in uses what follows.
  Gate gate_{
      "the writer is in use on this thread: what runs meanwhile, as a signal handler does, can "
      "only cancel() or abort() it"};
  State state_ = State::Open;
  std::unique_ptr<Sink> sink_;
  std::optional<std::uint64_t> reserved_;  // for the prefix
  std::unique_ptr<Layout> layout_;
  std::unordered_set<std::string> names_;

  std::atomic<bool> abort_wanted_{false};
  std::mutex cancel_mutex_;  // guards what follows
  Cancel* running_ = nullptr;
};

}  // namespace tensorizer
