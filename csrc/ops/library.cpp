// torch.ops.tensorizer: every schema, and the kernels that serve it.
#include <torch/csrc/jit/runtime/interpreter.h>
#include <torch/library.h>

#include "base/hooks.h"
#include "ops/internals.h"
#include "ops/kernels.h"
#include "ops/memory_digests.h"
#include "ops/script_reader.h"
#include "ops/script_writer.h"

namespace tensorizer::ops {

namespace {

c10::intrusive_ptr<ScriptReader> open(const at::Tensor& data, const Options& options) {
  return c10::make_intrusive<ScriptReader>(data, options);
}

TORCH_LIBRARY(tensorizer, m) {
  define_reader(m);
  define_writer(m);
  define_reader_internals(m);
  define_save_internals(m);
  set_script_check(+[] { return !torch::jit::currentCallstack().empty(); });
  m.set_python_module("tensorizer_ops._compile.fakes");
  // Without CONSERVATIVE, TorchScript removes a save as dead code, and freezing runs a load once
  // and keeps its result for good.
  const auto def = [&](const char* schema) {
    m.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE),
          {at::Tag::pt2_compliant_tag});
  };
  def("load(str uri, *, str[]? names=None, Device? device=None, ScalarType? dtype=None, "
      "str verify=\"none\", bool copy=False, int threads=0, Dict(str, str)? options=None) "
      "-> Dict(str, Tensor)");
  // load_tensors, load_slices, save_tensors and verify appear in graphs. `traced` is what tracing
  // saw of the file: the call fails if that no longer holds. `threads` is None by default, because
  // AOTInductor loses a default that is a number.
  def("load_tensors(str uri, str[] names, *, Device? device=None, ScalarType? dtype=None, "
      "str verify=\"none\", bool copy=False, int? threads=None, Dict(str, str)? options=None, "
      "str[]? traced=None) -> Tensor[]");
  // `tensors`, `dims`, `starts`, `lengths` and `steps` have an element for each dimension that is
  // sliced. `tensors` has places in `names`.
  def("load_slices(str uri, str[] names, int[] tensors, int[] dims, int[] starts, int[] lengths, "
      "int[]? steps=None, *, Device? device=None, ScalarType? dtype=None, str verify=\"none\", "
      "bool copy=False, int? threads=None, Dict(str, str)? options=None, str[]? traced=None) "
      "-> Tensor[]");
  def("save(str uri, Dict(str, Tensor) tensors, *, str hashes=\"chunked\", int threads=0, "
      "Dict(str, str)? options=None, Dict(str, str)? metadata=None) -> ()");
  def("save_tensors(str uri, str[] names, Tensor[] tensors, *, str hashes=\"chunked\", "
      "int? threads=None, Dict(str, str)? options=None, Dict(str, str)? metadata=None) -> ()");
  def("names(str uri, *, Dict(str, str)? options=None) -> str[]");
  def("verify(str uri, *, str verify=\"all\", int? threads=None, Dict(str, str)? options=None) "
      "-> ()");
  def("digest(str uri, *, int threads=0, Dict(str, str)? options=None, int version=1, "
      "bool listed=False) -> str");
  def("delta(str base, str new, str target, *, str hashes=\"chunked\", int threads=0, "
      "Dict(str, str)? base_options=None, Dict(str, str)? new_options=None, "
      "Dict(str, str)? target_options=None) -> ()");
  def("apply(str delta, str base, str? target=None, *, str? hashes=None, int threads=0, "
      "Dict(str, str)? delta_options=None, Dict(str, str)? base_options=None, "
      "Dict(str, str)? target_options=None) -> bool");
  // As `out` of load_into, `tensors` change.
  def("apply_into(str delta, str[] names, Tensor[] tensors, *, int threads=0, "
      "Dict(str, str)? options=None) -> bool");
  def("open(Tensor data, *, Dict(str, str)? options=None) "
      "-> __torch__.torch.classes.tensorizer.Reader");
  // `out` is not "Tensor(a!)[]": TorchScript takes that for a change of the list, not of the
  // tensors in it, and drops the call as dead code. Compilers never see this op, only the ops that
  // it calls.
  def("load_into(str uri, str[] names, Tensor[] out, *, str verify=\"none\", int threads=0, "
      "Dict(str, str)? options=None, bool cast=False) -> ()");
  // A number that compilers see as one of the program, and not as a constant.
  def("crc32(Tensor data) -> SymInt");
  def("sha256(Tensor data) -> Tensor");
  def("sha256_chunks(Tensor data, int chunk) -> Tensor");
}

// Ops that a library for a device may implement: all of them, or none is used. `data` has
// contiguous bytes on that device, of one tensor or part after another; the other tensors are on
// the CPU. The kernels queue their work on the current stream, and return a tensor on the device.
// Tensors on the CPU may be freed when they return.
TORCH_LIBRARY(tensorizer_device, m) {
  // Returns an int32 for each tensor, whose bits are those of zlib's CRC32.
  m.def("crc32(Tensor[] data) -> Tensor");
  // Returns the SHA-256 of each chunk of each tensor, one a row. The last chunk of a tensor may be
  // shorter.
  m.def("sha256_chunks(Tensor[] data, int chunk) -> Tensor");
  // XSalsa20 and Poly1305, as libsodium's crypto_secretbox_open_detached: decrypts each tensor in
  // chunks of a size of its own. `nonces` are those of first chunks, and count up; `macs` has 16
  // bytes for each chunk. Returns a byte for each chunk: 1 if its MAC is wrong, and then leaves the
  // chunk unchanged.
  m.def(
      "decrypt(Tensor(a!)[] data, int[] chunks, Tensor[] keys, Tensor[] nonces, Tensor[] macs) "
      "-> Tensor");
}

TORCH_LIBRARY_IMPL(tensorizer, CompositeExplicitAutograd, m) {
  m.impl("load_tensors", &load_tensors);
  m.impl("load_slices", &load_slices);
  m.impl("save_tensors", &save_tensors);
  m.impl("verify", &verify);
  m.impl("open", &open);
  m.impl("crc32", &crc32);
  m.impl("sha256", &sha256);
  m.impl("sha256_chunks", &sha256_chunks);
}

// Compilers cannot handle a dict, text, or outputs that change. They see the ops that these ones
// call instead.
void implement_composites(torch::Library& m) {
  m.impl("load", &load);
  m.impl("load_into", &load_into);
  m.impl("save", &save);
  m.impl("names", &names);
  m.impl("digest", &digest);
  m.impl("delta", &delta);
  m.impl("apply", &apply);
  m.impl("apply_into", &apply_into);
}
TORCH_LIBRARY_IMPL(tensorizer, CompositeImplicitAutograd, m) { implement_composites(m); }
// torch.export keeps a composite op as it is, and cannot serialize a dict. It does not keep an op
// that has kernels for the two keys at which it looks for composite ops.
TORCH_LIBRARY_IMPL(tensorizer, PreDispatch, m) { implement_composites(m); }
TORCH_LIBRARY_IMPL(tensorizer, PythonDispatcher, m) {
  implement_composites(m);
  for (const char* op : {"load_tensors", "load_slices"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&before_python_dispatcher>());
  }
}

// torch.func does not support dicts, and vmap and grad do not concern what these ops take or
// return. Tensors that it has wrapped reach save_tensors, where it sees them.
void pass_torch_func(torch::Library& m) {
  for (const char* op : {"load", "load_into", "load_tensors", "load_slices", "save", "names",
                         "verify", "digest", "delta", "apply"}) {
    m.impl(op, torch::CppFunction::makeFallthrough());
  }
}
TORCH_LIBRARY_IMPL(tensorizer, FuncTorchDynamicLayerFrontMode, m) { pass_torch_func(m); }
TORCH_LIBRARY_IMPL(tensorizer, FuncTorchDynamicLayerBackMode, m) { pass_torch_func(m); }

// Calls `implement` for each op that reads the bytes of tensors it is given.
template <typename Implement>
void for_each_reader_of_bytes(const Implement& implement) {
  for (const char* op : {"save_tensors", "open", "crc32", "sha256", "sha256_chunks"}) implement(op);
}
void leave_to_plain_kernel(torch::Library& m) {
  for_each_reader_of_bytes([&](const char* op) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&to_plain_kernel>());
  });
}
TORCH_LIBRARY_IMPL(tensorizer, NestedTensorCPU, m) { leave_to_plain_kernel(m); }
TORCH_LIBRARY_IMPL(tensorizer, NestedTensorCUDA, m) { leave_to_plain_kernel(m); }
TORCH_LIBRARY_IMPL(tensorizer, FuncTorchBatched, m) {
  leave_to_plain_kernel(m);
  m.impl("load_into", torch::CppFunction::makeFromBoxedFunction<&to_plain_kernel>());
}
TORCH_LIBRARY_IMPL(tensorizer, PythonTLSSnapshot, m) {
  for_each_reader_of_bytes([&](const char* op) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&before_subclasses>());
  });
  for (const char* op : {"load_tensors", "load_slices"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&before_modes>());
  }
}
// None of these ops has a gradient.
TORCH_LIBRARY_IMPL(tensorizer, Autograd, m) {
  for_each_reader_of_bytes(
      [&](const char* op) { m.impl(op, torch::CppFunction::makeFallthrough()); });
}

}  // namespace

}  // namespace tensorizer::ops
