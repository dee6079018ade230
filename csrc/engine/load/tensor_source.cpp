#include "engine/load/tensor_source.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "engine/digest/check.h"
#include "engine/read_arriving.h"

namespace tensorizer {

void TensorSource::read(std::uint32_t number, std::uint64_t position, Bytes out,
                        Cancel& cancel) try {
  if (position == 0) {
    begin(number, out, cancel);
  } else {
    fill(position, out, cancel);
  }
  if (digests_) digests_->update(out);
  if (chunks_) chunks_->update(out);
  if (position + out.size() == entry().data_size) compare();
} catch (...) {
  rethrow_naming(location());
}

void TensorSource::compare() {
  if (digests_) {
    const Digests found = digests_->finish();
    digests_.reset();
    const bool data_alone = file_.data_digests != nullptr;
    if (data_alone) file_.data_digests->keep(number_, found);
    const std::string wrong = compare_digests(
        location(), data_alone ? entry().data_offset : entry().header_offset, expected_, found);
    if (!wrong.empty()) fail(location(), ErrorKind::HashMismatch, wrong);
  }
  if (chunks_) {
    chunks_->finish();
    chunks_.reset();
    if (file_.data_digests != nullptr && !file_.data_digests->listed()) {
      file_.data_digests->keep(number_, 0, found_);
    } else {
      compare_chunks(file_.catalogue.chunk_digests(), number_, 0, found_,
                     [&](std::uint64_t position) { fail_chunk(position); });
    }
  }
}

void TensorSource::open(std::uint32_t number, Cancel& cancel) try {
  number_ = number;
  digests_.reset();
  chunks_.reset();
  details_.reset();
  chunk_at_.reset();
  opened_.reset();
  if (file_.catalogue.encrypted()) {
    const Entry& e = entry();
    const SourceLocation location(file_.source);
    file_.catalogue.check_header_size(number, location);
    read_arriving(file_.source, e.header_offset, e.header_size(), header_, cancel);
    const TensorDetails details = file_.catalogue.details(number, header_, location);
    if (e.data_size > 0) {
      if (file_.keys == nullptr) throw Error(ErrorKind::Crypto, std::string(kNoKey));
      key_ = file_.keys->key_for(details.crypt.derivation, cancel);
    }
    details_ = details;
  }
  opened_ = number;
} catch (...) {
  rethrow_naming(location());
}

void TensorSource::read_part(std::uint64_t position, Bytes out, Cancel& cancel) try {
  fill(position, out, cancel);
} catch (...) {
  rethrow_naming(location());
}

void TensorSource::begin(std::uint32_t number, Bytes out, Cancel& cancel) {
  // The details of encrypted data say how much of it must be read at once.
  open(number, cancel);
  const Entry& e = entry();
  const bool encrypted = file_.catalogue.encrypted();
  if (!encrypted) {
    const SourceLocation location(file_.source);
    file_.catalogue.check_header_size(number, location);
    header_.resize(e.header_size());
    const Bytes first = file_.checks_chunks ? first_bytes(out) : out;
    const std::array<Bytes, 2> pieces{Bytes(header_), first};
    file_.source.read(e.header_offset, pieces, cancel);
    details_ = file_.catalogue.details(number, header_, location);
    if (file_.checks_chunks) {
      check(0, first, cancel);
      if (first.data() != out.data()) chunk_at_ = 0;
      const std::size_t there = chunk_at_ ? 0 : first.size();
      fill(there, out.subspan(there), cancel);
      return;
    }
  }
  if (file_.data_digests != nullptr && file_.data_digests->in_chunks()) {
    found_.assign(chunk_count(e.data_size, kModelDigestChunk), {});
    chunks_.emplace(Hash::Sha256, kModelDigestChunk, found_);
  } else if (file_.data_digests != nullptr) {
    expected_ = file_.data_digests->expected_of(number);
    digests_.emplace(HashSet{Hash::Sha256});
  } else {
    expected_ = details_->digests;
    digests_.emplace(DigestStart{details_->hashed, hashes_of(expected_)});
  }
  if (encrypted) fill(0, out, cancel);
}

Bytes TensorSource::first_bytes(Bytes out) {
  const std::uint64_t chunk = file_.catalogue.chunk_digests().chunk_size();
  const std::uint64_t size = entry().data_size;
  if (out.size() == size) return out;
  if (out.size() >= chunk) return out.first(out.size() / chunk * chunk);
  chunk_.resize(std::min(chunk, size));
  return chunk_;
}

void TensorSource::fill(std::uint64_t position, Bytes out, Cancel& cancel) {
  if (file_.catalogue.encrypted()) {
    fill_from_chunks(details_->crypt.chunk_size, position, out, cancel);
  } else if (file_.checks_chunks) {
    fill_from_chunks(file_.catalogue.chunk_digests().chunk_size(), position, out, cancel);
  } else {
    file_.source.read(entry().data_offset + position, {&out, 1}, cancel);
  }
}

void TensorSource::fill_from_chunks(std::uint64_t chunk_size, std::uint64_t position, Bytes out,
                                    Cancel& cancel) {
  const Entry& e = entry();
  while (!out.empty()) {
    cancel.check();
    const std::uint64_t begin = position / chunk_size * chunk_size;
    const std::uint64_t whole = std::min(chunk_size, e.data_size - begin);
    if (begin == position && out.size() >= whole) {
      const std::uint64_t end = position + out.size();
      const Bytes chunks =
          out.first(end == e.data_size ? out.size() : out.size() / chunk_size * chunk_size);
      file_.source.read(e.data_offset + begin, {&chunks, 1}, cancel);
      check(begin, chunks, cancel);
      position += chunks.size();
      out = out.subspan(chunks.size());
      continue;
    }
    if (chunk_at_ != begin) {
      chunk_at_.reset();
      read_arriving(file_.source, e.data_offset + begin, whole, chunk_, cancel);
      check(begin, chunk_, cancel);
      chunk_at_ = begin;
    }
    const std::uint64_t inside = position - begin;
    const std::uint64_t part = std::min<std::uint64_t>(out.size(), whole - inside);
    std::copy_n(chunk_.begin() + static_cast<std::ptrdiff_t>(inside), part, out.begin());
    position += part;
    out = out.subspan(part);
  }
}

void TensorSource::check(std::uint64_t position, Bytes chunks, Cancel& cancel) {
  using Work = ComputeSlots::Work;
  const bool encrypted = file_.catalogue.encrypted();
  std::optional<ComputeSlots::Slot> slot;
  if (slots_ != nullptr) slot.emplace(*slots_, encrypted ? Work::Cipher : Work::Digest);
  if (encrypted) {
    decrypt_chunks(file_.source, entry(), details_->crypt, key_->bytes(), position, chunks, cancel,
                   [&](std::uint64_t at, Bytes chunk) {
                     const std::string what = describe_wrong_mac(entry(), at, chunk.size());
                     if (!file_.wrong_mac) fail(location(), ErrorKind::Crypto, what);
                     file_.wrong_mac(number_, at, what);
                   });
    return;
  }
  const ChunkDigests& listed = file_.catalogue.chunk_digests();
  found_.resize(chunk_count(chunks.size(), listed.chunk_size()));
  const ChunkedBytes chunked{chunks, found_};
  digest_chunks({&chunked, 1}, listed.hash(), listed.chunk_size());
  check_chunks(file_.source, location(), listed, position, chunks, found_, cancel,
               [&](std::uint64_t at, Bytes) { fail_chunk(at); });
}

void TensorSource::fail_chunk(std::uint64_t position) const {
  fail(location(), ErrorKind::HashMismatch,
       describe_damage(location(), file_.catalogue.chunk_digests(), position));
}

TensorLocation TensorSource::location() const { return {file_.source, entry(), number_}; }

}  // namespace tensorizer
