// The Python module `_core`: what Python adds to the library. It shows what files hold, turns
// errors into Python exceptions of their kinds, stops a running job at Ctrl-C, gives keys, and
// opens file objects as sources and sinks, which the ops of torch take by number.
//
// It needs neither torch nor its headers, so that one module serves every torch. No layer outside
// this folder knows of Python. Calls release the GIL, and a pending signal ends them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/cpus.h"
#include "base/number.h"
#include "base/suggest.h"
#include "codec/hmac.h"
#include "codec/sha256.h"
#include "engine/options.h"
#include "engine/save/new_layout.h"
#include "format/safetensors/dtype.h"
#include "io/handed_over.h"
#include "io/key.h"
#include "io/places/open.h"
#include "io/planted.h"
#include "io/secret.h"
#include "io/uri.h"
#include "python/error.h"
#include "python/file.h"
#include "python/files.h"
#include "python/interpreter.h"
#include "python/remote_bytes.h"
#include "python/trust.h"

namespace tensorizer {

namespace {

namespace nb = nanobind;

// The longest that the exit of the program waits for calls of other threads.
constexpr std::chrono::seconds kPatience{5};

std::terminate_handler terminate_before = nullptr;

// Also called for a thread that Python has ended.
void terminate() {
  const bool is_unwound = abi::__cxa_current_exception_type() == nullptr;
  if (is_unwound) outlive_python();
  terminate_before();
}

void end_calls_at_exit() {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    terminate_before = std::set_terminate(&terminate);
    const nb::gil_scoped_release no_gil;
    end_calls(kPatience);
  }));
  // In a program that goes on without Python.
  Py_AtExit(&admit_calls);
}

std::string_view text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

KeySource key_source(const nb::bytes& secret, bool passphrase) {
  const ConstBytes bytes = as_bytes(text_of(secret));
  return run(
      [&](Cancel& /*cancel*/) { return passphrase ? make_passphrase(bytes) : make_key(bytes); });
}

KeyDerivation key_derivation(std::uint64_t passes, std::uint64_t memory, const nb::bytes& salt) {
  const ConstBytes bytes = as_bytes(text_of(salt));
  KeyDerivation derivation{{passes, memory}, {}};
  if (bytes.size() != derivation.salt.size()) throw nb::value_error("a salt has 16 bytes");
  std::ranges::copy(bytes, derivation.salt.begin());
  return derivation;
}

nb::bytes derived_key(const nb::bytes& passphrase, std::uint64_t passes, std::uint64_t memory,
                      const nb::bytes& salt) {
  const KeySource source = key_source(passphrase, true);
  const KeyDerivation derivation = key_derivation(passes, memory, salt);
  const SharedSecret key =
      run([&](Cancel& cancel) { return derive_key(source.secret->bytes(), derivation, cancel); });
  return nb::bytes(key->bytes().data(), key->bytes().size());
}

// Returns a function that asks Python for a key, from any thread. Never releases `provide`, because
// the function may be destroyed after Python has shut down.
std::function<KeySource()> key_from_python(const nb::callable& provide, bool passphrase) {
  return [function = provide.inc_ref().ptr(), passphrase] {
    if (!python_is_running()) throw Error(ErrorKind::Cancelled, "Python has ended");
    const Gil gil;
    const nb::object bytes = nb::steal(PyObject_CallNoArgs(function));
    if (!bytes.is_valid()) throw_python_error();
    if (!nb::isinstance<nb::bytes>(bytes)) {
      throw Error(ErrorKind::InvalidArgument, "the function that provides a key returned no bytes");
    }
    return key_source(nb::borrow<nb::bytes>(bytes), passphrase);
  };
}

void define_keys(nb::module_& module) {
  module.def("set_secret",
             [](const std::string& name, const std::string& secret) { set_secret(name, secret); });
  module.def("set_key", [](const std::string& name, const nb::bytes& secret, bool passphrase) {
    set_key(name, key_source(secret, passphrase));
  });
  module.def("set_key_function",
             [](const std::string& name, const nb::callable& provide, bool passphrase) {
               set_key(name, key_from_python(provide, passphrase));
             });
  module.def("set_derived_key", [](const std::string& name, const nb::bytes& key,
                                   std::uint64_t passes, std::uint64_t memory,
                                   const nb::bytes& salt) {
    KeySource source = key_source(key, false);
    source.derivation = std::make_shared<const KeyDerivation>(key_derivation(passes, memory, salt));
    set_key(name, std::move(source));
  });
  module.def("forget_key", [](const std::string& name) { set_key(name, nullptr); });
  module.def("derive_key", &derived_key);
  // The same for all names of one key.
  module.def("key_digest", [](const std::string& name) {
    return run([&](Cancel& /*cancel*/) {
      const KeySource key = resolve_key(name);
      Sha256 digest;
      digest.update(as_bytes(key.passphrase ? "passphrase:" : "key:"));
      digest.update(key.secret->bytes());
      return to_hex(digest.finish());
    });
  });
}

// Sources, sinks and objects that ops take by their numbers.
void define_files(nb::module_& module) {
  nb::class_<HandedOver>(module, "HandedOver").def_prop_ro("number", &HandedOver::number);
  module.def("buffer_source", [](nb::handle buffer, std::uint64_t start) {
    return std::make_unique<HandedOver>(std::shared_ptr(buffer_source(buffer, start)));
  });
  module.def("file_source", [](nb::object file, std::uint64_t start, bool seekable, bool sequential,
                               bool keeps_nothing) {
    return std::make_unique<HandedOver>(std::shared_ptr(
        python_source({std::move(file), start, seekable, keeps_nothing}, sequential)));
  });
  module.def("file_sink", [](nb::object file, std::uint64_t start, bool keeps_nothing) {
    return std::make_unique<HandedOver>(python_sink({std::move(file), start, true, keeps_nothing}));
  });
  module.def("object_at", [](std::uintptr_t address) {
    return std::make_unique<HandedOver>(reinterpret_cast<void*>(address));
  });
}

// Returns the names that safetensors files have for torch's dtypes.
std::map<std::string, std::string> safetensors_dtypes() {
  std::map<std::string, std::string> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(safetensors_dtype(dtype));
    if (!name.empty()) names.emplace(dtype_info(dtype).torch_name, name);
  }
  return names;
}

}  // namespace

}  // namespace tensorizer

NB_MODULE(_core, module) {
  using namespace tensorizer;
  nb::set_leak_warnings(false);
  find_main_thread();
  end_calls_at_exit();
  define_errors();
  define_file(module);
  define_files(module);
  define_keys(module);
  define_remote_bytes(module);
  define_trust(module);
  module.def("set_hooks", &set_hooks);
  module.def("usable_cpus", &usable_cpus);
  module.def("did_you_mean", [](const nb::bytes& given, const std::vector<std::string>& known) {
    return did_you_mean(text_of(given), std::vector<std::string_view>(known.begin(), known.end()));
  });
  module.def("parse_bytes", [](const std::string& text) { return parse_bytes(text); });
  module.def("option_names", &option_names);
  module.def("is_uri", [](const nb::bytes& text) {
    return run([&](Cancel&) { return is_uri(text_of(text)); });
  });
  module.def("format_of", [](const std::string& uri) {
    const auto format = run([&](Cancel&) { return format_of(uri, std::nullopt); });
    return format == Format::Tensors ? "tensors" : "safetensors";
  });
  module.def("refuse_traced_secrets", [](const std::string& uri, const OptionList& options) {
    run([&](Cancel&) { refuse_secrets(uri, options, "a traced program"); });
  });
  module.def("scheme_folders", &scheme_folders);
  module.def("absolute_paths", [](const OptionList& options) {
    return run([&](Cancel&) { return absolute_paths(options); });
  });
  module.def("options_for", [](bool saves, const OptionList& options) {
    return run(
        [&](Cancel&) { return options_for(saves ? OptionUse::Save : OptionUse::Load, options); });
  });
  module.def("leads_to_own_file", [](const nb::bytes& path) {
    return own_file_at(std::string(text_of(path))).has_value();
  });
  module.def("may_be_anybody", &may_be_anybody);
  module.def("without_secrets", [](const std::string& uri) { return without_secrets(uri); });
  module.def("quoted", [](const nb::bytes& text, std::size_t most) {
    return quote({text.c_str(), text.size()}, most);
  });
  module.def("split_query", [](const std::string& uri) {
    const std::size_t end = path_end(uri);
    const std::string query = uri.substr(end);
    return std::pair(uri.substr(0, end), query.substr(0, query.find('#')));
  });
  module.attr("SAFETENSORS_DTYPES") = safetensors_dtypes();
}
