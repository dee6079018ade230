#include "engine/tensor_source.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "engine/check.h"
#include "engine/read_index.h"

namespace tensorizer {

void TensorSource::read(std::uint32_t number, std::uint64_t position, Bytes out,
                        Cancel& cancel) try {
  if (position == 0) {
    begin(number, out, cancel);
  } else {
    fill(position, out, cancel);
  }
  if (!digests_) return;
  digests_->update(out);
  if (position + out.size() < entry().data_size) return;
  const Digests found = digests_->finish();
  digests_.reset();
  check_digests(location(), file_.expected_digests, expected_, found);
} catch (...) {
  rethrow_naming(location());
}

void TensorSource::begin(std::uint32_t number, Bytes out, Cancel& cancel) {
  number_ = number;
  digests_.reset();
  chunk_at_.reset();
  const Entry& e = entry();
  const FileLocation location = place_of(file_.source);
  const bool encrypted = file_.index.header().encrypted;
  check_header_size(e, number, file_.index.header(), location);
  if (encrypted) {
    // How much of the data has to be read at once stands in the header.
    read_arriving(file_.source, e.header_offset, e.header_size(), bytes_, cancel);
  } else {
    bytes_.resize(e.header_size());
    const std::array<Bytes, 2> pieces{Bytes(bytes_), out};
    file_.source.read(e.header_offset, pieces, cancel);
  }
  header_ = parse_authentic_header(bytes_, file_.index, number, location);
  if (file_.expected_digests != nullptr) {
    expected_ = {std::nullopt, file_.expected_digests->expected_of(number)};
    digests_.emplace(DigestStart{{}, false, true});
  } else {
    expected_ = {header_->crc32, header_->sha256};
    const DigestStart start{header_->hashed, header_->crc32.has_value(),
                            header_->sha256.has_value()};
    if (start.crc32 || start.sha256) digests_.emplace(start);
  }
  if (!encrypted || e.data_size == 0) return;
  key_ = file_.keys->key_for(header_->crypt.derivation, cancel);
  fill(0, out, cancel);
}

void TensorSource::fill(std::uint64_t position, Bytes out, Cancel& cancel) {
  const Entry& e = entry();
  if (!file_.index.header().encrypted) {
    file_.source.read(e.data_offset + position, {&out, 1}, cancel);
    return;
  }
  const std::uint64_t size = header_->crypt.chunk_size;
  while (!out.empty()) {
    cancel.check();
    const std::uint64_t begin = position / size * size;
    const std::uint64_t whole = std::min(size, e.data_size - begin);
    if (begin == position && out.size() >= whole) {
      const Bytes chunk = out.first(whole);
      file_.source.read(e.data_offset + begin, {&chunk, 1}, cancel);
      decrypt_chunks(location(), header_->crypt, key_->bytes(), begin, chunk, cancel);
      position += whole;
      out = out.subspan(whole);
      continue;
    }
    if (chunk_at_ != begin) {
      chunk_at_.reset();
      read_arriving(file_.source, e.data_offset + begin, whole, chunk_, cancel);
      decrypt_chunks(location(), header_->crypt, key_->bytes(), begin, chunk_, cancel);
      chunk_at_ = begin;
    }
    const std::uint64_t inside = position - begin;
    const std::uint64_t part = std::min<std::uint64_t>(out.size(), whole - inside);
    std::copy_n(chunk_.begin() + static_cast<std::ptrdiff_t>(inside), part, out.begin());
    position += part;
    out = out.subspan(part);
  }
}

TensorLocation TensorSource::location() const { return {file_.source.label(), entry(), number_}; }

}  // namespace tensorizer
