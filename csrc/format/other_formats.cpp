#include "format/other_formats.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/text.h"

namespace tensorizer {

namespace {

using namespace std::string_view_literals;

// How a file begins, and what it is.
struct Start {
  std::string_view bytes;
  OtherFormat format;
};

constexpr std::string_view kFromTorch =
    "convert it with tensorizer_ops.convert(), or `tensorizer-ops convert`";
constexpr std::string_view kFromNumPy =
    "load it with numpy.load(), and save torch.from_numpy() of its arrays";
constexpr std::string_view kUnpack = "decompress it first";
constexpr std::string_view kFromWeb =
    "a server sent it in place of the file; open the URL in a browser, and check the address and "
    "the login";

constexpr OtherFormat kZip{"a PyTorch checkpoint (a zip archive, as torch.save() writes)",
                           kFromTorch};
constexpr OtherFormat kNumPyZip{"a NumPy archive (.npz)", kFromNumPy};
constexpr OtherFormat kPickle{"a pickle, as torch.save() wrote before version 1.6", kFromTorch};
constexpr OtherFormat kOnnx{"an ONNX model",
                            "save the weights of the PyTorch model that it was exported from"};
constexpr OtherFormat kTar{"a tar archive", "unpack it first"};

constexpr Start kStarts[] = {
    {"\x80\2"sv, kPickle},
    {"\x80\3"sv, kPickle},
    {"\x80\4"sv, kPickle},
    {"\x80\5"sv, kPickle},
    {"\x93NUMPY"sv, {"a NumPy array (.npy)", kFromNumPy}},
    {"GGUF"sv,
     {"a GGUF file",
      "this library does not read its quantized types; get the model as safetensors files"}},
    {"\x89HDF\r\n\x1a\n"sv,
     {"an HDF5 file, as Keras writes", "load it with h5py, and save its tensors"}},
    {"version https://git-lfs"sv,
     {"a Git LFS pointer", "the file itself was not downloaded; run git lfs pull"}},
    {"\x1f\x8b"sv, {"a gzip file", kUnpack}},
    {"\x28\xb5\x2f\xfd"sv, {"a Zstandard file", kUnpack}},
    {"\xfd\x37zXZ\0"sv, {"an xz file", kUnpack}},
};

// In lower case; case makes no difference, and white space may come first.
constexpr Start kTextStarts[] = {
    {"<!doctype html"sv, {"an HTML page", kFromWeb}},
    {"<html"sv, {"an HTML page", kFromWeb}},
    {"<?xml"sv, {"an XML document", kFromWeb}},
};

constexpr std::string_view kEndings[] = {
    ".7z",   ".bin",    ".bz2",   ".ckpt", ".engine",  ".ggml",    ".gguf", ".gz",  ".h5",
    ".hdf5", ".json",   ".keras", ".md",   ".mlmodel", ".msgpack", ".npy",  ".npz", ".onnx",
    ".pb",   ".pickle", ".pkl",   ".pt",   ".pt2",     ".pth",     ".sft",  ".tar", ".tflite",
    ".tgz",  ".txt",    ".xz",    ".yaml", ".yml",     ".zip",     ".zst",
};

// Returns the name of the first file in a zip archive that begins with these bytes, or what there
// is of it.
std::string_view first_in_zip(std::string_view archive) noexcept {
  constexpr std::size_t kSizeAt = 26;
  constexpr std::size_t kNameAt = 30;
  if (archive.size() < kNameAt) return {};
  const auto low = static_cast<unsigned char>(archive[kSizeAt]);
  const auto high = static_cast<unsigned char>(archive[kSizeAt + 1]);
  return archive.substr(kNameAt, low + 256U * high);
}

// An ONNX file begins with the version of its format and, if PyTorch wrote it, with its name.
bool is_onnx_of_torch(std::string_view file) noexcept {
  constexpr std::string_view kProducer = "\x12\x07pytorch";
  return file.starts_with('\x08') && file.size() > 2 && file.substr(2).starts_with(kProducer);
}

bool is_tar(std::string_view file) noexcept {
  constexpr std::size_t kMagicAt = 257;
  return file.size() > kMagicAt && file.substr(kMagicAt).starts_with("ustar");
}

bool starts_with_folded(std::string_view text, std::string_view lower) noexcept {
  return text.size() >= lower.size() &&
         std::ranges::equal(text.substr(0, lower.size()), lower, {}, [](char c) {
           return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
         });
}

}  // namespace

OtherFormat other_format(ConstBytes first) noexcept {
  const std::string_view file = as_text(first);
  if (file.starts_with("PK\3\4")) return first_in_zip(file).ends_with(".npy") ? kNumPyZip : kZip;
  for (const Start& start : kStarts) {
    if (file.starts_with(start.bytes)) return start.format;
  }
  if (is_onnx_of_torch(file)) return kOnnx;
  if (is_tar(file)) return kTar;
  std::string_view text = file;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte-order mark
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  for (const Start& start : kTextStarts) {
    if (starts_with_folded(text, start.bytes)) return start.format;
  }
  return {};
}

bool is_ending_of_other_format(std::string_view ending) noexcept {
  return std::ranges::find(kEndings, ending) != std::end(kEndings);
}

}  // namespace tensorizer
