// The Python module `_python`: what Python adds to the library. It turns errors into Python
// exceptions of their kinds, stops a running job at Ctrl-C, lets threads watch a save, holds the
// memory of tensors, finds the package of AOTInductor behind its Python object, and opens file
// objects as sources and sinks.
// stream.cpp has what the package's own file objects need. No layer outside this folder knows of
// Python.
//
// The hooks are called from any thread, with or without the GIL, until the process ends. Inside the
// TorchScript interpreter no Python exception survives, only its text: there an Error stays an
// Error.
#define PY_SSIZE_T_CLEAN  // sizes of text are Py_ssize_t
#include "python/module.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "base/cancel.h"
#include "base/cpus.h"
#include "base/error.h"
#include "base/hooks.h"
#include "ops/script_reader.h"
#include "ops/script_writer.h"
#include "python/core/exception.h"
#include "python/core/interpreter.h"
#include "python/files.h"
#include "python/shared_save.h"
#include "tensorizer_ops/constants.h"
#include "tensorizer_ops/hooks.h"
#include "tensorizer_ops/keys.h"
#include "transfer/files/file_writer.h"
#include "transfer/memory/held_memory.h"

namespace tensorizer {

void throw_python_error() {
  python_error exception;
  exception.persist();
  throw exception;
}

}  // namespace tensorizer

namespace {

using tensorizer::Error;
using tensorizer::ErrorKind;
using tensorizer::python_is_running;
using tensorizer::string_dict;
using tensorizer::throw_python_error;
using tensorizer::ops::ScriptReader;
using tensorizer::ops::ScriptWriter;

// tensorizer_ops.errors._make. Never released, because a call may need it until the process ends.
PyObject* make_exception = nullptr;

bool in_torchscript() { return !torch::jit::currentCallstack().empty(); }

void raise_in_python(const Error& error) {
  if (!python_is_running() || in_torchscript()) return;
  const pybind11::gil_scoped_acquire gil;
  tensorizer::set_exception(make_exception, error);
  python_error exception;
  exception.persist();
  // What AOTInductor and C++ callers see, which lose the type: it names the kind.
  exception.message = error.what();
  throw exception;
}

void run_with_gil(const std::function<void()>& work) {
  if (!python_is_running()) {
    work();
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  work();
}

void stop_on_signal() {
  if (!tensorizer::handles_signals()) return;
  const pybind11::gil_scoped_acquire gil;
  if (in_torchscript()) {
    if (PyOS_InterruptOccurred() == 0) return;
    // Python sees the signal once the interpreter has returned.
    PyErr_SetInterrupt();
    throw Error(ErrorKind::Cancelled, "interrupted by a signal");
  }
  if (PyErr_CheckSignals() != 0) throw_python_error();
}

void log_in_python(const std::string& text) {
  if (!python_is_running()) return;
  const pybind11::gil_scoped_acquire gil;
  try {
    const pybind11::object logger =
        pybind11::module_::import("logging").attr("getLogger")("tensorizer_ops");
    logger.attr("info")("%s", text);
  } catch (pybind11::error_already_set& error) {
    // A signal may have arrived while the logger ran.
    if (!error.matches(PyExc_Exception)) {
      error.restore();
      throw_python_error();
    }
    // A handler that fails must not make a load fail.
    error.discard_as_unraisable("tensorizer_ops");
  }
}

using Package = torch::inductor::AOTIModelPackageLoader;

// Returns the loader in one of torch's Python objects, whose class derives from it and is declared
// in no header.
Package& package_of(const pybind11::object& object) {
  const pybind11::detail::type_info* type = pybind11::detail::get_type_info(Py_TYPE(object.ptr()));
  if (type != nullptr &&
      std::string_view(type->type->tp_name).ends_with("AOTIModelPackageLoader")) {
    pybind11::detail::type_caster_generic caster(type);
    if (caster.load(object, false)) return *static_cast<Package*>(caster.value);
  }
  throw pybind11::type_error(std::string("model is ") + Py_TYPE(object.ptr())->tp_name +
                             ", and must be an AOTInductor package that "
                             "torch._inductor.aoti_load_package() loaded");
}

// Returns the unexpected keys; a missing one is an error.
std::vector<std::string> load_constants(const pybind11::object& package, const std::string& uri,
                                        bool strict, const std::string& verify,
                                        std::int64_t threads,
                                        const tensorizer::OptionList& options) {
  Package& loader = package_of(package);
  const pybind11::gil_scoped_release no_gil;
  return tensorizer::translate_errors([&] {
    return tensorizer::load_constants(loader, uri,
                                      {strict, tensorizer::parse_verify(verify), threads}, options)
        .unexpected_keys;
  });
}

// A save that other threads can watch and cancel.
struct BackgroundSave {
  tensorizer::Progress progress;
  tensorizer::Cancel cancel;
};

// A URI; or a file object, the position in it to write from, and whether it keeps no buffers.
using SaveTarget = std::variant<std::string, std::tuple<pybind11::object, std::uint64_t, bool>>;

void run_save(BackgroundSave& job, const SaveTarget& target, std::vector<std::string> names,
              std::vector<at::Tensor> tensors, const std::string& hashes, std::int64_t threads,
              tensorizer::OptionList options, std::optional<tensorizer::Metadata> metadata) {
  tensorizer::SaveRequest request{.names = std::move(names),
                                  .tensors = std::move(tensors),
                                  .threads = threads,
                                  .options = std::move(options),
                                  .metadata = std::move(metadata)};
  if (const auto* const uri = std::get_if<std::string>(&target)) {
    request.uri = *uri;
  } else {
    const auto& [file, start, keeps_nothing] = std::get<1>(target);
    request.sink = tensorizer::python_sink({file, start, true, keeps_nothing});
  }
  const pybind11::gil_scoped_release no_gil;
  tensorizer::translate_errors([&] {
    request.hashes = tensorizer::parse_hashes(hashes);
    tensorizer::save(std::move(request), job.progress, job.cancel);
  });
}

tensorizer::KeySource key_source(const pybind11::bytes& secret, bool passphrase) {
  const tensorizer::ConstBytes bytes = tensorizer::as_bytes(std::string_view(secret));
  return tensorizer::translate_errors([&] {
    return passphrase ? tensorizer::make_passphrase(bytes) : tensorizer::make_key(bytes);
  });
}

tensorizer::KeyDerivation key_derivation(std::uint64_t passes, std::uint64_t memory,
                                         const pybind11::bytes& salt) {
  const tensorizer::ConstBytes bytes = tensorizer::as_bytes(std::string_view(salt));
  tensorizer::KeyDerivation derivation{{passes, memory}, {}};
  if (bytes.size() != derivation.salt.size()) throw pybind11::value_error("a salt has 16 bytes");
  std::copy(bytes.begin(), bytes.end(), derivation.salt.begin());
  return derivation;
}

pybind11::bytes derive_key(const pybind11::bytes& passphrase, std::uint64_t passes,
                           std::uint64_t memory, const pybind11::bytes& salt) {
  const tensorizer::KeySource source = key_source(passphrase, true);
  const tensorizer::KeyDerivation derivation = key_derivation(passes, memory, salt);
  tensorizer::SharedSecret key;
  {
    const pybind11::gil_scoped_release no_gil;
    key = tensorizer::translate_errors([&] {
      tensorizer::Cancel cancel;
      return tensorizer::derive_key(source.secret->bytes(), derivation, cancel);
    });
  }
  const std::string_view text = tensorizer::as_text(key->bytes());
  return {text.data(), text.size()};
}

using Texts = std::map<std::string, std::string>;

// Returns a Reader or Writer as torch.classes.tensorizer makes them.
template <typename Class, typename... Arguments>
pybind11::object make_class(Arguments... arguments) {
  return torch::jit::toPyObject(c10::IValue(c10::make_intrusive<Class>(std::move(arguments)...)));
}

// Returns a function that asks Python for a key, from any thread. Never releases `provide`, because
// the function may be destroyed after Python has shut down.
std::function<tensorizer::KeySource()> key_from_python(const pybind11::function& provide,
                                                       bool passphrase) {
  return [function = provide.inc_ref().ptr(), passphrase] {
    if (!python_is_running()) throw Error(ErrorKind::Cancelled, "Python has ended");
    const pybind11::gil_scoped_acquire gil;
    const auto bytes = pybind11::reinterpret_steal<pybind11::object>(PyObject_CallNoArgs(function));
    if (!bytes) throw_python_error();
    if (!pybind11::isinstance<pybind11::bytes>(bytes)) {
      throw Error(ErrorKind::InvalidArgument, "the function that provides a key returned no bytes");
    }
    return key_source(bytes, passphrase);
  };
}

}  // namespace

PYBIND11_MODULE(_python, module) {
  module.def("load_constants", torch::wrap_pybind_function(load_constants));
  pybind11::class_<BackgroundSave>(module, "BackgroundSave")
      .def(pybind11::init<>())
      .def("run", torch::wrap_pybind_function(run_save))
      .def("progress",
           [](const BackgroundSave& job) {
             return std::pair(job.progress.done.load(), job.progress.total.load());
           })
      .def("cancel", [](BackgroundSave& job) { job.cancel.request(); });
  using Held = tensorizer::HeldMemory;
  pybind11::class_<Held>(module, "HeldMemory")
      .def(pybind11::init(torch::wrap_pybind_function(
          [](const std::vector<at::Tensor>& tensors) { return std::make_unique<Held>(tensors); })))
      .def("__enter__", [](const Held& held) { return held.tensors(); })
      .def("__exit__", [](Held& held, const pybind11::args&) { held.release(); });
  pybind11::object make = pybind11::module_::import("tensorizer_ops.errors").attr("_make");
  make_exception = make.release().ptr();
  tensorizer::find_main_thread();
  tensorizer::set_raise_hook(&raise_in_python);
  tensorizer::set_alone_hook(&run_with_gil);
  tensorizer::set_interrupt_hook(&stop_on_signal);
  tensorizer::set_log_hook(&log_in_python);
  tensorizer::define_streams(module);
  tensorizer::define_shared_save(module);
  module.def("set_key",
             [](const std::string& name, const pybind11::bytes& secret, bool passphrase) {
               tensorizer::set_key(name, key_source(secret, passphrase));
             });
  module.def("set_key_function",
             [](const std::string& name, const pybind11::function& provide, bool passphrase) {
               tensorizer::set_key(name, key_from_python(provide, passphrase));
             });
  module.def("set_derived_key", [](const std::string& name, const pybind11::bytes& key,
                                   std::uint64_t passes, std::uint64_t memory,
                                   const pybind11::bytes& salt) {
    tensorizer::KeySource source = key_source(key, false);
    source.derivation =
        std::make_shared<const tensorizer::KeyDerivation>(key_derivation(passes, memory, salt));
    tensorizer::set_key(name, std::move(source));
  });
  module.def("derive_key", torch::wrap_pybind_function(derive_key));
  module.def("usable_cpus", &tensorizer::usable_cpus);
  module.def("read_buffer",
             torch::wrap_pybind_function(
                 [](const pybind11::buffer& buffer, std::uint64_t start, const Texts& options) {
                   return make_class<ScriptReader>(tensorizer::buffer_source(buffer, start),
                                                   string_dict(options));
                 }));
  module.def("read_file",
             torch::wrap_pybind_function([](const pybind11::object& file, std::uint64_t start,
                                            bool seekable, bool sequential, bool keeps_nothing,
                                            const Texts& options) {
               return make_class<ScriptReader>(
                   tensorizer::python_source({file, start, seekable, keeps_nothing}, sequential),
                   string_dict(options));
             }));
  module.def("write_file",
             torch::wrap_pybind_function([](const pybind11::object& file, std::uint64_t start,
                                            bool keeps_nothing, const Texts& options,
                                            const std::optional<Texts>& metadata) {
               return make_class<ScriptWriter>(
                   tensorizer::python_sink({file, start, true, keeps_nothing}),
                   string_dict(options),
                   metadata ? std::optional(string_dict(*metadata)) : std::nullopt);
             }));
  module.def("forget_key", [](const std::string& name) { tensorizer::set_key(name, nullptr); });
}
