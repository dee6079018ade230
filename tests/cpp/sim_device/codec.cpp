// Kernels for the ops of tensorizer_device: digests and ciphers that the device computes itself.
// They use other libraries than tensorizer_ops does, and are registered only while a test asks for
// them.
#include "codec.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <openssl/evp.h>
#include <sodium.h>
#include <torch/library.h>
#include <zlib.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "control.h"
#include "memory.h"
#include "streams.h"

namespace sim_device {

namespace {

constexpr std::size_t kCrc32Size = 4;
constexpr std::size_t kSha256Size = 32;

at::Tensor bytes_on_host(std::size_t size) {
  return at::empty({static_cast<std::int64_t>(size)}, at::TensorOptions().dtype(c10::kByte));
}

unsigned char* data_of(const at::Tensor& bytes) {
  return static_cast<unsigned char*>(bytes.mutable_data_ptr());
}

// Runs the work on the current stream, with the tensor as the streams see it, and waits for it.
template <typename Work>
void run(Counter counter, const at::Tensor& data, const Work& work) {
  add(counter);
  wait_on_host(launch(current_stream(data.device().index()), {data},
                      [seen = as_seen_by_streams(data), &work] { work(seen); }));
}

at::Tensor digest(const at::Tensor& head, const at::Tensor& data, bool crc32, bool sha256) {
  at::Tensor found = bytes_on_host(kCrc32Size + kSha256Size);
  std::memset(data_of(found), 0, found.nbytes());
  run(Counter::OwnDigests, data, [&](const at::Tensor& seen) {
    if (crc32) {
      auto sum = static_cast<std::uint32_t>(::crc32_z(0, data_of(head), head.nbytes()));
      sum = static_cast<std::uint32_t>(::crc32_z(sum, data_of(seen), seen.nbytes()));
      std::memcpy(data_of(found), &sum, kCrc32Size);
    }
    if (!sha256) return;
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          &EVP_MD_CTX_free);
    EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
    EVP_DigestUpdate(context.get(), data_of(head), head.nbytes());
    EVP_DigestUpdate(context.get(), data_of(seen), seen.nbytes());
    EVP_DigestFinal_ex(context.get(), data_of(found) + kCrc32Size, nullptr);
  });
  return found;
}

bool decrypt(const at::Tensor& data, const at::Tensor& key, const at::Tensor& nonce,
             const at::Tensor& mac) {
  bool done = false;
  run(Counter::OwnCiphers, data, [&](const at::Tensor& seen) {
    done = crypto_secretbox_open_detached(data_of(seen), data_of(seen), data_of(mac), seen.nbytes(),
                                          data_of(nonce), data_of(key)) == 0;
  });
  return done;
}

at::Tensor encrypt(const at::Tensor& data, const at::Tensor& out, const at::Tensor& key,
                   const at::Tensor& nonce) {
  at::Tensor mac = bytes_on_host(crypto_secretbox_MACBYTES);
  run(Counter::OwnCiphers, data, [&](const at::Tensor& seen) {
    crypto_secretbox_detached(data_of(out), data_of(mac), data_of(seen), seen.nbytes(),
                              data_of(nonce), data_of(key));
  });
  return mac;
}

std::mutex mutex;
std::unique_ptr<torch::Library> kernels;

}  // namespace

void set_codec(bool own) {
  const std::lock_guard lock(mutex);
  kernels.reset();
  if (!own) return;
  TORCH_CHECK(sodium_init() >= 0, "sim: libsodium cannot be used");
  kernels = std::make_unique<torch::Library>(torch::Library::IMPL, "tensorizer_device",
                                             c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  kernels->impl("digest", digest);
  kernels->impl("decrypt", decrypt);
  kernels->impl("encrypt", encrypt);
}

}  // namespace sim_device
