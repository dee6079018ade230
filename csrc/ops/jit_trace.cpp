// Records the ops for torch.jit.trace(), whose own fallback supports no lists of strings and no
// dicts.
#include <c10/util/ScopeExit.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/library.h>

#include "base/error.h"
#include "ops/translate_errors.h"

namespace tensorizer::ops {

namespace {

using torch::jit::Graph;
using torch::jit::Stack;
using torch::jit::Value;
namespace tracer = torch::jit::tracer;

// Returns the argument in the graph: tensors are values of it, everything else is a constant.
Value* traced_argument(Graph& graph, const c10::IValue& argument) {
  if (argument.isTensor() || argument.isTensorList()) return tracer::getValueTrace(argument);
  if (argument.isGenericDict() &&
      argument.toGenericDict().valueType()->isSubtypeOf(*c10::TensorType::get())) {
    std::vector<Value*> keys;
    std::vector<Value*> values;
    for (const auto& item : argument.toGenericDict()) {
      keys.push_back(graph.insertConstant(item.key()));
      values.push_back(tracer::getValueTrace(item.value()));
    }
    const auto dict =
        graph.createDict(c10::StringType::get(), c10::TensorType::get(), keys, values);
    return graph.insertNode(dict)->output();
  }
  return graph.insertConstant(argument);
}

// Throws if the URI or an option holds a secret. An op with options has a URI first.
void refuse_secrets_in(at::ArrayRef<c10::IValue> arguments, const c10::FunctionSchema& schema) {
  const std::optional<int> place = schema.argumentIndexWithName("options");
  if (!place) return;
  const c10::IValue& options = arguments.at(*place);
  translate_errors([&] {
    refuse_secrets(arguments[0].toStringRef(), option_list(options.to<std::optional<StringDict>>()),
                   "a traced program");
  });
}

// Calls the op, and adds the same call to the graph.
void record(const c10::OperatorHandle& op, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  refuse_secrets_in(arguments, schema);
  const std::shared_ptr<Graph> graph = tracer::getTracingState()->graph;
  torch::jit::Node* node = graph->create(c10::Symbol::fromQualString(schema.name()), 0);
  for (const c10::IValue& argument : arguments) {
    node->addInput(traced_argument(*graph, argument));
  }
  tracer::recordSourceLocation(node);
  graph->insertNode(node);
  {
    const auto resume = c10::make_scope_exit(tracer::pauseTracing());
    op.callBoxed(stack);
  }
  const auto results = torch::jit::last(*stack, schema.returns().size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    tracer::setValueTrace(results[i], node->addOutput()->setType(schema.returns()[i].type()));
  }
}

// Calls the op, and adds nothing to the graph: neither the call, nor the ops that it consists of.
void run(const c10::OperatorHandle& op, Stack* stack) {
  const auto resume = c10::make_scope_exit(tracer::pauseTracing());
  op.callBoxed(stack);
}

void refuse(const c10::OperatorHandle& op, Stack*) {
  translate_errors([&] {
    throw Error(ErrorKind::InvalidArgument,
                op.schema().name() + " cannot be traced: script it, or call it outside");
  });
}

TORCH_LIBRARY_IMPL(tensorizer, Tracer, m) {
  for (const char* op : {"load", "load_tensors", "load_slices", "load_into", "save", "save_tensors",
                         "verify", "sha256", "sha256_chunks"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&record>());
  }
  // A traced graph has values for tensors only: what these ops return now becomes a constant.
  for (const char* op : {"names", "digest", "crc32"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  for (const char* op : {"delta", "apply", "apply_into"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

}  // namespace

}  // namespace tensorizer::ops
