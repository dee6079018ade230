// A running call of a FileReader, for its own source files.
#pragma once

#include <mutex>

#include "base/cancel.h"
#include "engine/move/move.h"
#include "transfer/files/file_reader.h"

namespace tensorizer {

// Registered with the reader so that progress() and cancel() find it.
class FileReader::Job {
 public:
  explicit Job(FileReader& reader) : Job(reader, own_) {}
  // `given` must outlive the job.
  Job(FileReader& reader, Cancel& given) : cancel(given), reader_(reader) {
    const std::lock_guard lock(reader_.mutex_);
    reader_.jobs_.push_back(this);
  }
  ~Job() {
    const std::lock_guard lock(reader_.mutex_);
    std::erase(reader_.jobs_, this);
    reader_.last_progress_ = {progress.done, progress.total};
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Cancel& cancel;
  Progress progress;

 private:
  FileReader& reader_;
  Cancel own_;
};

}  // namespace tensorizer
