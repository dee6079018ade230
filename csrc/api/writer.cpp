#include "tensorizer_ops/writer.h"

#include "transfer/files/file_writer.h"

namespace tensorizer {

namespace {

std::optional<Metadata> unless_empty(const Metadata& metadata) {
  return metadata.empty() ? std::nullopt : std::optional(metadata);
}

}  // namespace

void save(const std::string& uri, const std::vector<std::string>& names,
          const std::vector<at::Tensor>& tensors, HashKinds hashes, std::int64_t threads,
          const OptionList& options, const Metadata& metadata) {
  Progress progress;
  Cancel cancel;
  save({.uri = uri,
        .names = names,
        .tensors = tensors,
        .hashes = hashes,
        .threads = threads,
        .options = options,
        .metadata = unless_empty(metadata)},
       progress, cancel);
}

Writer::Writer(const std::string& uri, const OptionList& options, const Metadata& metadata)
    : writer_(std::make_unique<FileWriter>(uri, options, unless_empty(metadata))) {}

Writer::~Writer() = default;
Writer::Writer(Writer&& other) noexcept = default;
Writer& Writer::operator=(Writer&& other) noexcept = default;

void Writer::add(const std::string& name, const at::Tensor& tensor, TensorType type,
                 std::uint16_t module_index) {
  const AddedTensor added{name, tensor, type, module_index};
  writer_->add({&added, 1});
}

void Writer::add(std::span<const AddedTensor> tensors) { writer_->add(tensors); }

void Writer::flush() { writer_->flush(); }

void Writer::close() { writer_->close(); }

void Writer::abort() { writer_->abort(); }

std::pair<std::uint64_t, std::uint64_t> Writer::progress() const { return writer_->progress(); }

void Writer::cancel() { writer_->cancel(); }

}  // namespace tensorizer
