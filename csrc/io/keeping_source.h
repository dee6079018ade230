// A base of sources that keep, hash or check the bytes that pass.
#pragma once

#include <span>

#include "io/source.h"

namespace tensorizer {

// Gives a derived class pieces that share no memory, and only reads within the file, whose size
// must be known.
class KeepingSource : public ForwardingSource {
 public:
  explicit KeepingSource(std::shared_ptr<Source> file)
      : ForwardingSource(std::move(file)), size_(file_->size().value()) {}

  void read(std::uint64_t offset, std::span<const Bytes> pieces, Cancel& cancel) final;
  std::size_t read_up_to(std::uint64_t offset, Bytes out, Cancel& cancel) final;
  std::optional<FileIdentity> identity() const override { return file_->identity(); }
  bool reads(const FileIdentity& file) const override { return file_->reads(file); }
  std::uint64_t block() const override { return file_->block(); }

 protected:
  // Does what read() does. The file has all bytes that the pieces want, at least one.
  virtual void read_distinct(std::uint64_t offset, std::span<const Bytes> pieces,
                             Cancel& cancel) = 0;

  const std::uint64_t size_;
};

}  // namespace tensorizer
