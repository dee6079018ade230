#include "transfer/files/tracing.h"

#include "base/error.h"
#include "engine/open/open_model.h"
#include "transfer/files/file_reader.h"
#include "transfer/memory/dtype.h"

namespace tensorizer {

namespace {
constexpr const char* kAll = "all";
}  // namespace

void check_traceable(const std::string& uri, const OptionList& options) {
  refuse_secrets(uri, options, "a traced program");
  Cancel cancel;
  std::unique_ptr<Source> source;
  try {
    source = open_model(uri, parse_load_options(options), cancel);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::NotFound) throw;
    throw Error(ErrorKind::NotFound,
                std::string(error.message()) +
                    "; tracing a program needs the file, with the names and shapes that it will "
                    "have when the program runs",
                error.system_errno(), error.path());
  }
  if (!source->sequential()) return;
  throw Error(
      ErrorKind::InvalidArgument,
      source->label() +
          " can be read only once, and tracing would consume its bytes: trace with a regular "
          "file, or load outside of the traced code");
}

Traced trace(FileReader& reader, const std::optional<std::vector<std::string>>& names,
             std::optional<c10::ScalarType> dtype) {
  check_traceable(reader.uri(), reader.options());
  Traced seen{names ? *names : reader.names(), {}};
  for (const std::string& name : seen.names) {
    seen.shapes.push_back(describe_shape(cast_type(reader.dtype(name), dtype), reader.shape(name)));
  }
  if (!names) seen.shapes.emplace_back(kAll);
  return seen;
}

std::string describe_shape(c10::ScalarType type, at::IntArrayRef shape) {
  return dtype_name(type) + c10::str(shape);
}

void check_traced(OpenFile& file, std::span<const std::uint32_t> selected,
                  std::optional<c10::ScalarType> dtype, std::span<const std::string> traced) {
  const bool all = !traced.empty() && traced.back() == kAll;
  if (all) traced = traced.first(traced.size() - 1);
  if (traced.size() != selected.size()) {
    throw Error(ErrorKind::InvalidArgument, std::to_string(selected.size()) + " names and " +
                                                std::to_string(traced.size()) + " traced shapes");
  }
  for (std::size_t i = 0; i < selected.size(); ++i) {
    const std::string now = describe_shape(cast_type(scalar_type(file.dtype(selected[i])), dtype),
                                           file.entry(selected[i]).shape);
    if (now == traced[i]) continue;
    throw Error(ErrorKind::InvalidArgument, file.describe_entry(selected[i]) + " is " + now +
                                                ", and was " + traced[i] +
                                                " when this program was traced: trace it again");
  }
  if (all && file.names().size() != traced.size()) {
    throw Error(ErrorKind::InvalidArgument,
                file.source().label() + " has " + std::to_string(file.names().size()) +
                    " tensors, and had " + std::to_string(traced.size()) +
                    " when this program, which loads all, was traced: trace it again");
  }
}

}  // namespace tensorizer
