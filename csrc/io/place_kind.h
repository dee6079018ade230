// A kind of place, as the folder of io that serves it describes it. The table of all kinds is in
// io/places.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/cancel.h"
#include "io/option.h"
#include "io/options.h"
#include "io/shared_sink.h"
#include "io/sink.h"
#include "io/source.h"

namespace tensorizer {

struct UriScheme {
  std::string_view name;  // empty for plain paths
  const char* written;    // for messages
};

// The largest file for `swap`.
inline constexpr std::uint64_t kMostSwapped = 16 << 20;

// A null function is an operation that this kind does not support. io/places/open.h has the
// contract of each function.
struct PlaceKind {
  std::string_view folder;
  std::span<const UriScheme> schemes;
  bool on_server = true;
  // Returns options that check their values; null if there are none.
  std::vector<Option> (*options)() = nullptr;
  std::unique_ptr<Source> (*open_source)(const std::string& uri, const SourceOptions& options,
                                         Cancel& cancel);
  std::unique_ptr<Sink> (*open_sink)(const std::string& uri, const SinkOptions& options,
                                     Cancel& cancel);
  std::unique_ptr<SharedSink> (*open_shared_sink)(const std::string& uri,
                                                  const std::optional<std::string>& joined,
                                                  const SinkOptions& options,
                                                  Cancel& cancel) = nullptr;
  std::string (*sibling)(const std::string& uri, const std::string& name,
                         const OptionList& given) = nullptr;
  // Returns what of a URI chooses the server and the file, which may be a secret, but is the same
  // for every login. Null: the whole URI. It is parsed as the connection is: two servers must
  // differ.
  std::string (*identity)(const std::string& uri) = nullptr;
  std::optional<std::string> (*file_name)(const std::string& uri) = nullptr;
  void (*remove)(const std::string& uri, const SinkOptions& options, Cancel& cancel) = nullptr;
  bool (*swap)(const std::string& uri, std::optional<ConstBytes> known, ConstBytes next,
               const SinkOptions& options, Cancel& cancel) = nullptr;
  std::optional<std::vector<std::string>> (*files_in)(const std::string& uri,
                                                      std::string_view suffix,
                                                      Cancel& cancel) = nullptr;
};

// Returns the options of `declare`, which set a struct that they own.
template <typename Options>
std::vector<Option> over_own(std::vector<Option> (*declare)(Options&)) {
  const auto values = std::make_shared<Options>();
  std::vector<Option> options = declare(*values);
  for (Option& option : options) {
    option.set = [values, set = std::move(option.set)](const std::string& name,
                                                       const std::string& value) {
      return set(name, value);
    };
  }
  return options;
}
template <auto declare>
std::vector<Option> checks() {
  return over_own(declare);
}

}  // namespace tensorizer
