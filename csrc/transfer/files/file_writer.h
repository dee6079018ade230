// save(), and the file behind each Writer: those of C++ programs (api), of TorchScript
// (ops/script_writer.h) and of Python.
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
#include "engine/options.h"
#include "tensorizer_ops/writer.h"
#include "transfer/files/saving.h"
#include "transfer/memory/held_memory.h"

namespace tensorizer {

// Implements the public save(). Other threads may read `progress` and call cancel.request()
// meanwhile.
void save(SaveRequest request, Progress& progress, Cancel& cancel);

// Methods that Writer has too have the contract that tensorizer_ops/writer.h declares.
class FileWriter {
 public:
  explicit FileWriter(const std::string& uri, const OptionList& options = {},
                      std::optional<Metadata> metadata = {});
  // Writes to a sink that is already open.
  FileWriter(std::unique_ptr<Sink> sink, const OptionList& options,
             std::optional<Metadata> metadata = {});
  ~FileWriter();

  void add(std::span<const AddedTensor> tensors);
  void flush();
  void close();
  void abort();

  std::pair<std::uint64_t, std::uint64_t> progress() const;
  void cancel();

  enum class State { Open, Closed, Aborted };
  // The next two may be called from any thread, and wait for nothing.
  State state() const noexcept { return state_; }
  // Returns how many tensors were added so far.
  std::size_t tensor_count() const noexcept { return tensor_count_; }

 private:
  class Call;
  using OpenSink = std::function<std::unique_ptr<Sink>(const SinkOptions& options, Cancel& cancel)>;

  FileWriter(const std::string& uri, const OptionList& options, std::optional<Metadata> metadata,
             const OpenSink& open);

  // Returns whether this is a child of fork(), which has neither the sink's threads nor the right
  // to write its target.
  bool is_foreign() const { return process_ != getpid(); }
  void must_be_ours() const;
  void must_be_open() const;
  std::vector<Saving> prepare(std::span<const AddedTensor> tensors, const HeldMemory& held,
                              Staging& staging);
  std::vector<SaveItem> place(std::vector<Saving>& savings);
  // Throws if the prefix of the tensors that were placed has no room, before the last `more` bytes
  // of the file are written.
  void check_room(std::uint64_t more) const;
  void begin();
  // Writes the terminator behind the tensors and the prefix in front of them. Resizes the room for
  // the prefix to `prefix_size`, or to what it needs if that is more, if the sink can.
  void write_ends(std::uint64_t prefix_size, Cancel& cancel);
  void abort_now() noexcept;

  const WriterOptions options_;
  const int threads_;
  const pid_t process_ = getpid();
  Progress progress_;
  std::atomic<State> state_{State::Open};  // changes only inside `gate_`
  std::atomic<std::size_t> tensor_count_{0};

  // The members below are used only inside `gate_`.
  Gate gate_{
      "the writer is in use on this thread: code that runs inside its call, such as a signal "
      "handler, can only cancel() or abort() the writer"};
  std::unique_ptr<Sink> sink_;
  std::optional<std::uint64_t> reserved_;  // bytes for the prefix
  std::unique_ptr<Layout> layout_;
  std::unordered_set<std::string> names_;

  std::atomic<bool> abort_wanted_{false};
  std::mutex cancel_mutex_;  // guards `running_`
  Cancel* running_ = nullptr;
};

}  // namespace tensorizer
