// The options of open_source() and open_sink().
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>

#include "io/option.h"

namespace tensorizer {

// State that sources or sinks with the same options share, such as their credentials and
// connections. Thread-safe.
class SharedAccess {
 public:
  // Returns what `make` of the first call for this type returned.
  template <typename Kept, typename Make>
  std::shared_ptr<Kept> get(const Make& make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& kept = kept_[typeid(Kept)];
    if (!kept) kept = make();
    return std::static_pointer_cast<Kept>(kept);
  }

 private:
  std::mutex mutex_;
  std::map<std::type_index, std::shared_ptr<void>> kept_;
};

// How the bytes of a file of this machine come into memory.
enum class FileAccess : std::uint8_t {
  Auto,      // what is fastest, and leaves in the page cache what fits there
  Buffered,  // reads through the page cache
  Direct,    // reads around the page cache, where the file system can do that
  Mapped,    // the tensors are pages of the file
};

struct SourceOptions {
  bool operator==(const SourceOptions&) const = default;

  // Options of all folders of io (place_options(), in io/places/open.h). A folder takes the ones
  // that it declares.
  OptionList given{};
  // The range that will be read, if known: the first request asks for nothing outside it.
  std::uint64_t begin = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
  // Accepts bytes that do not make up a whole file, and gaps between them, where the source could
  // detect that.
  bool any_bytes = false;
  // Null if the source shares nothing.
  std::shared_ptr<SharedAccess> access{};
  FileAccess file_access = FileAccess::Auto;
};

struct SinkOptions {
  OptionList given{};
  // Waits until the bytes and the name are on stable storage.
  bool fsync = false;
  // Replaces what has the name of the file on this machine, also a symbolic link or a FIFO, and
  // writes to nothing that it leads to.
  bool replace_links = false;
  // The size of the parts of an upload whose total size is not known beforehand.
  std::uint64_t part_size = 16 << 20;
  std::shared_ptr<SharedAccess> access{};
  // The path of a file of this machine that the new one replaces under another name. It must be
  // writable, and the new file gets its access rights unless there is a file of its name.
  std::string replaces{};
};

}  // namespace tensorizer
