#include "engine/tensor_source.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "engine/check.h"
#include "engine/read_arriving.h"

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

const TensorDetails& TensorSource::open(std::uint32_t number, Cancel& cancel) try {
  number_ = number;
  digests_.reset();
  details_.reset();
  chunk_at_.reset();
  const Entry& e = entry();
  const FileLocation location = location_of(file_.source);
  file_.catalogue.check_header_size(number, location);
  read_arriving(file_.source, e.header_offset, e.header_size(), header_, cancel);
  const TensorDetails details = file_.catalogue.details(number, header_, location);
  if (e.data_size > 0) key_ = file_.keys->key_for(details.crypt.derivation, cancel);
  return details_.emplace(details);
} catch (...) {
  rethrow_naming(location());
}

void TensorSource::read_part(std::uint64_t position, Bytes out, Cancel& cancel) try {
  fill(position, out, cancel);
} catch (...) {
  rethrow_naming(location());
}

void TensorSource::begin(std::uint32_t number, Bytes out, Cancel& cancel) {
  if (file_.catalogue.encrypted()) {
    // The details say how much of the data must be read at once.
    open(number, cancel);
  } else {
    number_ = number;
    digests_.reset();
    const Entry& e = entry();
    const FileLocation location = location_of(file_.source);
    file_.catalogue.check_header_size(number, location);
    header_.resize(e.header_size());
    const std::array<Bytes, 2> pieces{Bytes(header_), out};
    file_.source.read(e.header_offset, pieces, cancel);
    details_ = file_.catalogue.details(number, header_, location);
  }
  if (file_.expected_digests != nullptr) {
    expected_ = {std::nullopt, file_.expected_digests->expected_of(number)};
    digests_.emplace(DigestStart{{}, false, true});
  } else {
    expected_ = {details_->crc32, details_->sha256};
    const DigestStart start{details_->hashed, details_->crc32.has_value(),
                            details_->sha256.has_value()};
    if (start.crc32 || start.sha256) digests_.emplace(start);
  }
  if (file_.catalogue.encrypted()) fill(0, out, cancel);
}

void TensorSource::fill(std::uint64_t position, Bytes out, Cancel& cancel) {
  const Entry& e = entry();
  if (!file_.catalogue.encrypted()) {
    file_.source.read(e.data_offset + position, {&out, 1}, cancel);
    return;
  }
  const std::uint64_t size = details_->crypt.chunk_size;
  while (!out.empty()) {
    cancel.check();
    const std::uint64_t begin = position / size * size;
    const std::uint64_t whole = std::min(size, e.data_size - begin);
    if (begin == position && out.size() >= whole) {
      const Bytes chunk = out.first(whole);
      file_.source.read(e.data_offset + begin, {&chunk, 1}, cancel);
      decrypt_chunks(location(), details_->crypt, key_->bytes(), begin, chunk, cancel);
      position += whole;
      out = out.subspan(whole);
      continue;
    }
    if (chunk_at_ != begin) {
      chunk_at_.reset();
      read_arriving(file_.source, e.data_offset + begin, whole, chunk_, cancel);
      decrypt_chunks(location(), details_->crypt, key_->bytes(), begin, chunk_, cancel);
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
