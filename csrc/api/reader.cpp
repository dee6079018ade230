#include "tensorizer_ops/reader.h"

#include "transfer/files/file_reader.h"
#include "transfer/files/fill.h"

namespace tensorizer {

Reader::Reader(std::string uri, OptionList options)
    : reader_(std::make_unique<FileReader>(std::move(uri), absolute_paths(std::move(options)))) {}

Reader::Reader(at::Tensor data, OptionList options)
    : reader_(std::make_unique<FileReader>(data, absolute_paths(std::move(options)))) {}

Reader::~Reader() = default;
Reader::Reader(Reader&& other) noexcept = default;
Reader& Reader::operator=(Reader&& other) noexcept = default;

std::vector<std::string> Reader::names() { return reader_->names(); }

Metadata Reader::metadata() { return reader_->metadata().value_or(Metadata()); }

std::vector<std::int64_t> Reader::shape(const std::string& name) { return reader_->shape(name); }

c10::ScalarType Reader::dtype(const std::string& name) { return reader_->dtype(name); }

std::vector<ListedTensor> Reader::list() { return reader_->list(); }

StoredTensor Reader::stored(const std::string& name) { return reader_->stored(name); }

std::vector<at::Tensor> Reader::load(const std::optional<std::vector<std::string>>& names,
                                     const LoadRequest& request) {
  return reader_->load(names, request);
}

std::vector<at::Tensor> Reader::load_slices(const std::vector<std::string>& names,
                                            const std::vector<SlicedDimension>& slices,
                                            const LoadRequest& request) {
  return reader_->load_slices(names, slices, request);
}

void Reader::load_into(const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& outputs, Verify verify, std::int64_t threads,
                       bool cast) {
  reader_->load_into(names, outputs, verify, threads, cast);
}

Filled Reader::fill(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors,
                    const FillRequest& request) {
  return tensorizer::fill(*reader_, names, tensors, request);
}

void Reader::prefetch(const std::optional<std::vector<std::string>>& names) {
  reader_->prefetch(names);
}

void Reader::verify(Verify verify, std::int64_t threads) { reader_->verify(verify, threads); }

std::string Reader::digest(std::int64_t threads, std::int64_t version, bool listed) {
  return reader_->digest(threads, version, listed);
}

void Reader::rewrite(const std::string& to, HashKinds hashes, const OptionList& options,
                     std::int64_t threads) {
  reader_->rewrite(to, hashes, options, threads);
}

Updated Reader::update(const std::string& to, std::int64_t threads) {
  return reader_->update(to, threads);
}

std::pair<std::uint64_t, std::uint64_t> Reader::progress() const { return reader_->progress(); }

LoadStats Reader::stats() const { return reader_->stats(); }

void Reader::cancel() { reader_->cancel(); }

void Reader::close() { reader_->close(); }

}  // namespace tensorizer
