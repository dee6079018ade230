// A `.tensors` file built field by field, from the description of the format alone, so that it can
// test the library independently. A test can break every field by name.
#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/crc32.h"
#include "codec/sha256.h"

namespace tensorizer::testing_support {

struct RawTensor {
  std::string name = "weight";
  std::string dtype = "<f4";
  std::vector<std::uint64_t> shape = {2};
  std::string data = std::string(8, '\x5a');
  std::uint8_t type = 2;
  bool long_dimensions = false;
  std::string index_dtype = {};  // if it differs from `dtype`
  std::size_t padding = 0;
  bool crc32 = true;
  bool sha256 = true;
  std::optional<std::string> crypt = {};
  std::optional<std::string> hashed = {};  // what the hashes cover instead of the data
};

// Fields of the file have plain names ("version", "count"); those of index entry N start with "N."
// ("0.data_size"), and those of its tensor header with "N.h." ("0.h.length").
class RawFile {
 public:
  struct Field {
    std::size_t at;
    std::size_t size;
  };

  explicit RawFile(const std::vector<RawTensor>& tensors, std::uint32_t version = 1,
                   std::string_view index_tail = {}) {
    put_bytes("magic", "|TZR|");
    put<std::uint32_t>("version", version);
    put<std::uint8_t>("flags", version == 5 ? 2 : 0);
    put_bytes("more_flags", std::string(31, '\0'));
    put<std::uint64_t>("file_size", 0);
    put<std::uint64_t>("unused", 0);
    put<std::uint64_t>("count", tensors.size());
    put<std::uint64_t>("index_size", 0);
    const std::size_t index_begin = bytes.size();
    for (std::size_t i = 0; i < tensors.size(); ++i) put_entry(tensors[i], i, version == 5);
    entries_end = bytes.size();
    if (!index_tail.empty()) put_bytes("tail", index_tail);
    index_end = bytes.size();
    set("index_size", index_end - index_begin);
    for (std::size_t i = 0; i < tensors.size(); ++i) put_tensor(tensors[i], i);
    data_end = bytes.size();
    put<std::uint64_t>("terminator", 0);
  }

  std::uint64_t get(const std::string& field) const {
    std::uint64_t value = 0;
    const Field place = fields.at(field);
    std::memcpy(&value, bytes.data() + place.at, std::min(place.size, sizeof(value)));
    return value;
  }

  void set(const std::string& field, std::uint64_t value) {
    const Field place = fields.at(field);
    std::memcpy(bytes.data() + place.at, &value, std::min(place.size, sizeof(value)));
  }

  void set_text(const std::string& field, std::string_view text) {
    const Field place = fields.at(field);
    if (text.size() != place.size) throw std::logic_error(field + " has another size");
    std::memcpy(bytes.data() + place.at, text.data(), text.size());
  }

  std::vector<std::byte> bytes;
  std::map<std::string, Field> fields;
  std::size_t entries_end = 0;
  std::size_t index_end = 0;
  std::size_t data_end = 0;

 private:
  template <typename T>
  void put(const std::string& field, T value) {
    fields[field] = {bytes.size(), sizeof(T)};
    ByteWriter(bytes).put(value);
  }

  void put_bytes(const std::string& field, std::string_view text) {
    fields[field] = {bytes.size(), text.size()};
    ByteWriter(bytes).put_bytes(as_bytes(text));
  }

  void put_shape(const std::string& prefix, const RawTensor& tensor) {
    put<std::uint8_t>(prefix + "dimensions", static_cast<std::uint8_t>(tensor.shape.size()));
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const std::string field = prefix + "dimension" + std::to_string(i);
      if (tensor.long_dimensions) {
        put(field, tensor.shape[i]);
      } else {
        put(field, static_cast<std::uint32_t>(tensor.shape[i]));
      }
    }
  }

  void put_entry(const RawTensor& tensor, std::size_t number, bool versioned) {
    const std::string prefix = std::to_string(number) + ".";
    const std::string& dtype = tensor.index_dtype.empty() ? tensor.dtype : tensor.index_dtype;
    if (versioned) put<std::uint32_t>(prefix + "version", tensor.long_dimensions ? 5 : 1);
    put<std::uint16_t>(prefix + "name_size", static_cast<std::uint16_t>(tensor.name.size()));
    put_bytes(prefix + "name", tensor.name);
    put<std::uint8_t>(prefix + "type", tensor.type);
    put<std::uint8_t>(prefix + "dtype_size", static_cast<std::uint8_t>(dtype.size()));
    put_bytes(prefix + "dtype", dtype);
    put_shape(prefix, tensor);
    put<std::uint64_t>(prefix + "header_offset", 0);
    put<std::uint64_t>(prefix + "data_offset", 0);
    put<std::uint64_t>(prefix + "data_size", tensor.data.size());
  }

  void put_tensor(const RawTensor& tensor, std::size_t number) {
    const std::string entry = std::to_string(number) + ".";
    const std::string prefix = entry + "h.";
    const std::size_t begin = bytes.size();
    set(entry + "header_offset", begin);
    put<std::uint64_t>(prefix + "length", 0);
    put<std::uint16_t>(prefix + "module", 7);
    put<std::uint8_t>(prefix + "type", tensor.type);
    put<std::uint16_t>(prefix + "name_size", static_cast<std::uint16_t>(tensor.name.size()));
    put_bytes(prefix + "name", tensor.name);
    put<std::uint8_t>(prefix + "dtype_size", static_cast<std::uint8_t>(tensor.dtype.size()));
    put_bytes(prefix + "dtype", tensor.dtype);
    put_shape(prefix, tensor);
    const int hashes = (tensor.crc32 ? 1 : 0) + (tensor.sha256 ? 1 : 0);
    put<std::uint16_t>(
        prefix + "hash_section",
        static_cast<std::uint16_t>(1 + (tensor.crc32 ? 6 : 0) + (tensor.sha256 ? 34 : 0)));
    put<std::uint8_t>(prefix + "hashes", static_cast<std::uint8_t>(hashes));
    if (tensor.crc32) {
      put<std::uint8_t>(prefix + "crc32_type", 0);
      put<std::uint8_t>(prefix + "crc32_size", 4);
      put<std::uint32_t>(prefix + "crc32", 0);
    }
    if (tensor.sha256) {
      put<std::uint8_t>(prefix + "sha256_type", 1);
      put<std::uint8_t>(prefix + "sha256_size", 32);
      put_bytes(prefix + "sha256", std::string(32, '\0'));
    }
    const std::size_t hashed_end = bytes.size();
    if (tensor.crypt) {
      put<std::uint64_t>(prefix + "crypt_size", tensor.crypt->size());
      put_bytes(prefix + "crypt", *tensor.crypt);
    }
    const std::size_t crypt_end = bytes.size();
    if (tensor.padding > 0) put_bytes(prefix + "padding", std::string(tensor.padding, '\0'));
    put<std::uint64_t>(prefix + "data_size", tensor.data.size());
    const std::size_t header_end = bytes.size();
    set(prefix + "length", header_end - begin);
    set(entry + "data_offset", header_end);
    put_bytes(entry + "data", tensor.data);

    const ConstBytes all(bytes);
    Sha256 sha256;
    std::uint32_t crc = 0;
    const ConstBytes header_rest = all.subspan(crypt_end, header_end - crypt_end);
    const ConstBytes data = as_bytes(tensor.hashed ? *tensor.hashed : tensor.data);
    for (const ConstBytes part : {all.subspan(begin, hashed_end - begin), header_rest, data}) {
      crc = crc32(crc, part);
      sha256.update(part);
    }
    if (tensor.crc32) set(prefix + "crc32", crc);
    const Sha256Digest digest = sha256.finish();
    if (tensor.sha256) set_text(prefix + "sha256", as_text(digest));
  }
};

}  // namespace tensorizer::testing_support
