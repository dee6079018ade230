#include "engine/save/sequential_save.h"

#include <algorithm>
#include <vector>

namespace tensorizer {

template <typename Use>
void SequentialSave::each_piece(std::size_t item, Use&& use) {
  const std::uint64_t size = job_.data_size(item);
  // A tensor that is read from another file has a header there, which is checked even without data.
  if (size == 0 && job_.items[item].read) job_.data(item, 0, 0, access_);
  for (std::uint64_t at = 0; at < size; at += piece_) {
    cancel_.check();
    use(at, job_.data(item, at, std::min(piece_, size - at), access_));
  }
}

void SequentialSave::run(const std::function<void()>& write_head) {
  std::vector<TensorHeaderImage> headers;
  if (write_head) {
    for (std::size_t item = 0; item < job_.items.size(); ++item) headers.push_back(header(item));
    write_head();
  }
  for (std::size_t item = 0; item < job_.items.size(); ++item) {
    if (write_head) {
      write(item, headers[item]);
    } else {
      TensorHeaderImage image = header(item);
      write(item, image);
    }
  }
}

TensorHeaderImage SequentialSave::header(std::size_t item) {
  TensorHeaderImage image = job_.header(item);
  SavedDigests digests(job_, item, image);
  if (!job_.hashes().empty() || job_.layout.has_digests()) {
    each_piece(item, [&](std::uint64_t at, const SavedBytes& piece) {
      digests.update(piece.plain);
      job_.encrypt(image, at, piece);
    });
  }
  digests.complete(image);
  return image;
}

void SequentialSave::write(std::size_t item, TensorHeaderImage& image) {
  job_.write_header(item, image, cancel_);
  each_piece(item, [&](std::uint64_t at, const SavedBytes& piece) {
    job_.write_data(item, at, job_.encrypt(image, at, piece), cancel_);
  });
}

}  // namespace tensorizer
