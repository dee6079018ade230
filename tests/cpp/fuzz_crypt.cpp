// Fuzzes encrypted data. The first byte of an input says what the rest is:
//   0  crypt info, behind eight bytes for the size of the data
//   1  the body of the record that authenticates the metadata, behind a byte for the number of
//      tensors
//   2  changes of an encrypted file of ours: for each, two bytes for where and one for what
//   3  the same, of a file without that record, as other programs write it
// Input that parses must be consistent, and data that loads from a changed file must be the data
// that was encrypted.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "codec/hmac.h"
#include "engine/load/load.h"
#include "engine/open/read_catalogue.h"
#include "format/tensors/crypt_info.h"
#include "format/tensors/frame.h"
#include "format/tensors/index.h"
#include "format/tensors/layout.h"
#include "format/tensors/records.h"
#include "fuzz_text.h"
#include "io/source.h"

namespace tensorizer {
namespace {

// ---- parsing

void parse_crypt(Cursor input) {
  const auto data_size = input.take<std::uint64_t>() >> 1;  // as large as an index allows
  std::string fault;
  const CryptInfo info = parse_crypt_info(input.take_bytes(input.left()), data_size, fault);
  if (!fault.empty()) return;
  if (data_size > 0) {
    require(info.macs.size() == kMacSize * chunks_of(data_size, info.chunk_size));
  }
  for (std::size_t at = 0; at < info.macs.size(); at += kMacSize) {
    require(info.mac(at / kMacSize).size() == kMacSize);
  }
}

void parse_record(Cursor input) {
  const auto tensors = input.take<std::uint8_t>();
  std::string fault;
  const Authentication read = parse_authentication(input.take_bytes(input.left()), tensors, fault);
  if (!fault.empty()) return;
  require(read.mac.size() == kSha256Size);
  for (std::size_t i = 0; i < tensors; ++i) {
    require(read.header_digest(i).size() == kSha256Size);
  }
}

// ---- changed files

struct Tensor {
  TensorSpec spec;
  std::vector<std::byte> data;
};

// Returns tensors of different bytes, so that no tensor can be taken for another.
std::vector<Tensor> tensors() {
  std::vector<Tensor> made;
  std::uint32_t state = 1;
  for (const std::int64_t size : {40, 3000, 0, 3000}) {
    Tensor tensor;
    tensor.spec.name = "t" + std::to_string(made.size());
    tensor.spec.shape = {size};
    for (std::int64_t i = 0; i < size; ++i) {
      state = state * 1664525U + 1013904223U;
      tensor.data.push_back(static_cast<std::byte>(state >> 24));
    }
    made.push_back(std::move(tensor));
  }
  return made;
}

// Encrypts `data` in place and appends its crypt info. Uses chunks of 1 KiB, where the library
// would use a single chunk, and nonces that are the same in every run.
void put_crypt_info(std::vector<std::byte>& out, ConstBytes key, Bytes data, std::uint8_t number) {
  constexpr std::uint64_t kChunk = 1024;
  const std::uint64_t count = chunks_of(data.size(), kChunk);
  ByteWriter fields(out);
  fields.put(std::uint64_t{2 + (count > 0 ? 8 + 42 + count * kMacSize : 0)});
  fields.put(static_cast<std::uint16_t>(count > 0 ? 1 : 0));
  if (count == 0) return;
  Nonce nonce{};
  nonce[3] = std::byte{number};
  fields.put(std::uint64_t{42 + count * kMacSize});
  fields.put(std::uint16_t{2});
  fields.put(kChunk);
  fields.put_bytes(nonce);
  fields.put(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Bytes chunk =
        data.subspan(i * kChunk, std::min<std::size_t>(kChunk, data.size() - i * kChunk));
    fields.put_bytes(encrypt_chunk(key, nonce_after(nonce, i), chunk, chunk));
  }
}

struct Original {
  std::vector<Tensor> expected = tensors();
  SharedSecret key = std::make_shared<SecretBytes>(kKeySize);
  std::vector<std::byte> ours = make(true);
  std::vector<std::byte> foreign = make(false);

 private:
  // Returns a header without padding, and the encrypted data behind it.
  std::vector<std::byte> block(const Tensor& tensor, std::uint8_t number) const {
    std::vector<std::byte> bytes;
    std::vector<std::byte> data = tensor.data;
    ByteWriter out(bytes);
    out.put(std::uint64_t{0});
    out.put(std::uint16_t{0});
    out.put(static_cast<std::uint8_t>(tensor.spec.type));
    out.put_text<std::uint16_t>(tensor.spec.name);
    out.put_text<std::uint8_t>("|u1");
    out.put(std::uint8_t{1});
    out.put(static_cast<std::uint32_t>(data.size()));
    out.put(std::uint16_t{1});
    out.put(std::uint8_t{0});
    put_crypt_info(bytes, key->bytes(), data, number);
    out.put(std::uint64_t{data.size()});
    const std::uint64_t length = bytes.size();
    std::memcpy(bytes.data(), &length, sizeof(length));
    out.put_bytes(data);
    return bytes;
  }

  std::vector<std::byte> make(bool authenticated) const {
    std::vector<std::vector<std::byte>> blocks;
    for (const Tensor& tensor : expected) {
      blocks.push_back(block(tensor, static_cast<std::uint8_t>(blocks.size() + 1)));
    }
    constexpr std::uint64_t kPrefix = 512;
    std::vector<std::byte> file;
    ByteWriter out(file);
    out.put_bytes(as_bytes(kFileMagic));
    out.put(kEncryptedVersion);
    file.resize(file.size() + kFlagBytes + 16);
    out.put(std::uint64_t{expected.size()});
    out.put(kPrefix - kFileHeaderSize);
    std::uint64_t at = kPrefix;
    std::vector<Sha256Digest> headers;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Tensor& tensor = expected[i];
      const std::uint64_t header = blocks[i].size() - tensor.data.size();
      headers.push_back(sha256(ConstBytes(blocks[i]).first(header)));
      out.put_text<std::uint16_t>(tensor.spec.name);
      out.put(static_cast<std::uint8_t>(tensor.spec.type));
      out.put_text<std::uint8_t>("|u1");
      out.put(std::uint8_t{1});
      out.put(static_cast<std::uint32_t>(tensor.data.size()));
      out.put(at);
      out.put(at + header);
      out.put(std::uint64_t{tensor.data.size()});
      at += blocks[i].size();
    }
    if (authenticated) {
      out.put_bytes(as_bytes(kFrameMagic));
      put_authentication(file, {key, {}}, headers);
    }
    require(file.size() <= kPrefix);
    file.resize(kPrefix);
    for (const std::vector<std::byte>& each : blocks) out.put_bytes(each);
    out.put(kTerminator);
    return file;
  }
};

// Loads the bytes of every tensor in the index.
std::vector<std::vector<std::byte>> load_all(Source& source, Index& index, FileKeys& keys,
                                             Cancel& cancel) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<LoadItem> items;
  for (const Entry& entry : index.entries()) {
    memory.emplace_back(entry.data_size);
    items.push_back(whole_tensor(index, static_cast<std::uint32_t>(items.size())));
    items.back().memory = memory.back();
  }
  LoadSettings settings;
  settings.keys = &keys;
  Progress progress;
  load(source, index, items, settings, progress, cancel);
  return memory;
}

// Returns whether `part` is a contiguous part of a tensor. If nothing authenticates the metadata, a
// changed file may name tensors and cut their data differently, but the bytes must still come from
// one tensor, in order.
bool stands_in(ConstBytes part, std::span<const Tensor> whole) {
  for (const Tensor& tensor : whole) {
    if (as_text(tensor.data).find(as_text(part)) != std::string_view::npos) return true;
  }
  return false;
}

void change(Cursor input, bool ours) {
  static const Original original;
  std::vector<std::byte> file = ours ? original.ours : original.foreign;
  while (input.left() >= 3) {
    const auto at = input.take<std::uint16_t>();
    file[at % file.size()] ^= static_cast<std::byte>(input.take<std::uint8_t>());
  }
  Cancel cancel;
  const std::unique_ptr<Source> source = memory_source(file, nullptr);
  FileKeys keys({original.key, false}, {1, 8192}, "'f'");
  try {
    const std::unique_ptr<Catalogue> catalogue = read_catalogue(*source, &keys, cancel);
    if (catalogue->info().format != Format::Tensors) return;
    auto& index = dynamic_cast<Index&>(*catalogue);
    const std::vector<std::vector<std::byte>> loaded = load_all(*source, index, keys, cancel);
    const bool authentic = index.authentication().has_value();
    require(!authentic || (ours && loaded.size() == original.expected.size()));
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      if (authentic) {
        const Tensor& expected = original.expected[i];
        require(index.entries()[i].name == expected.spec.name);
        require(as_text(loaded[i]) == as_text(expected.data));
      } else {
        require(stands_in(loaded[i], original.expected));
      }
    }
  } catch (const Error& error) {
    require(file != (ours ? original.ours : original.foreign));
    require(error.kind() == ErrorKind::InvalidFormat || error.kind() == ErrorKind::Crypto ||
            error.kind() == ErrorKind::HashMismatch);
  }
}

}  // namespace
}  // namespace tensorizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorizer;
  Cursor input(ConstBytes(reinterpret_cast<const std::byte*>(data), size));
  switch (input.take<std::uint8_t>() % 4) {
    case 0:
      parse_crypt(input);
      break;
    case 1:
      parse_record(input);
      break;
    case 2:
      change(input, true);
      break;
    default:
      change(input, false);
  }
  return 0;
}
