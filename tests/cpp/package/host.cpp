// Uses every class and function of the public headers as a program does, without Python. Prints the
// version that it runs with; exits with 1 and the line of the first expectation that fails.
#include <tensorizer_ops/tensorizer.h>

#include <ATen/ATen.h>

#include <cstdlib>
#include <iostream>
#include <utility>

namespace {

#define EXPECT(condition)                                     \
  if (!(condition)) {                                         \
    std::cerr << "line " << __LINE__ << ": " #condition "\n"; \
    std::exit(1);                                             \
  }

template <typename Call>
tensorizer::ErrorKind kind_of(const Call& call) {
  try {
    call();
  } catch (const tensorizer::Error& error) {
    const std::string kind(tensorizer::kind_name(error.kind()));
    EXPECT(error.what() == "tensorizer." + kind + ": " + std::string(error.message()));
    return error.kind();
  }
  return tensorizer::ErrorKind::Internal;
}

struct Interrupted {};

void write_and_read() {
  tensorizer::Writer unused("unused.tensors");
  tensorizer::Writer writer("dropped.tensors");
  writer.abort();
  writer = tensorizer::Writer("a.tensors", {{"expected_tensors", "3"}});
  writer.add("ones", at::ones({2, 3}), tensorizer::TensorType::Parameter, 4);
  const tensorizer::AddedTensor more[] = {{"twos", at::full({5}, 2)}, {"none", at::ones({0})}};
  writer.add(more);
  writer.flush();
  EXPECT(writer.progress().second > 0);
  writer.cancel();
  writer.close();

  tensorizer::Reader reader("unused.tensors");
  EXPECT(kind_of([&] { reader.names(); }) == tensorizer::ErrorKind::NotFound);
  reader = tensorizer::Reader("a.tensors");
  EXPECT((reader.names() == std::vector<std::string>{"ones", "twos", "none"}));
  EXPECT((reader.shape("ones") == std::vector<std::int64_t>{2, 3}));
  EXPECT(reader.dtype("twos") == at::kLong);
  const std::vector<tensorizer::ListedTensor> list = reader.list();
  EXPECT(list.size() == 3 && list[1].data_size == 40 && list[1].memory_size == 40);
  const tensorizer::StoredTensor stored = reader.stored("ones");
  EXPECT(stored.crc32 && !stored.sha256 && stored.module_index == 4);
  EXPECT(stored.type == tensorizer::TensorType::Parameter);
  tensorizer::LoadRequest request;
  request.dtype = at::kDouble;
  request.verify = tensorizer::Verify::All;
  request.copy = true;
  EXPECT(reader.load({{"ones"}}, request).at(0).equal(at::ones({2, 3}, at::kDouble)));
  const std::vector<tensorizer::SlicedDimension> slices{{0, 0, 1, 3}, {1, 1, 0, 2, 2}};
  const std::vector<at::Tensor> parts = reader.load_slices({"twos", "ones"}, slices);
  EXPECT(parts.at(0).equal(at::full({3}, 2)) && parts.at(1).equal(at::ones({2, 2})));
  const at::Tensor filled = at::zeros({2, 3});
  reader.load_into({"ones"}, {filled}, tensorizer::Verify::Crc32);
  EXPECT(filled.equal(at::ones({2, 3})));
  tensorizer::FillRequest fill;
  fill.names = tensorizer::Names::All;
  const at::Tensor placeholder = at::empty({5}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const tensorizer::Filled filled_up = reader.fill({"twos"}, {placeholder}, fill);
  EXPECT(filled_up.tensors.at(0).equal(at::full({5}, 2)) && filled_up.keys.missing_keys.empty());
  EXPECT((filled_up.keys.unexpected_keys == std::vector<std::string>{"ones", "none"}));
  reader.verify();
  EXPECT(reader.stats().loads == 5 && reader.progress().first == reader.progress().second);

  tensorizer::set_key(
      "ours", [] { return tensorizer::make_key(std::vector<std::byte>(32, std::byte{3})); });
  reader.rewrite("b.tensors", {false, true}, {{"key", "named:ours"}});
  tensorizer::Reader encrypted("b.tensors", {{"key", "named:ours"}});
  EXPECT(encrypted.digest() == reader.digest());
  EXPECT(encrypted.digest(0, 2) == reader.digest(0, 2) && reader.digest(0, 2).starts_with("v2:"));
  tensorizer::set_key("ours", std::function<tensorizer::KeySource()>());
  tensorizer::Reader without_key("b.tensors", {{"key", "named:ours"}});
  EXPECT(kind_of([&] { without_key.names(); }) == tensorizer::ErrorKind::InvalidArgument);
  tensorizer::set_key("ours", tensorizer::make_passphrase(std::vector<std::byte>(3)));
  EXPECT(kind_of([&] { without_key.names(); }) == tensorizer::ErrorKind::Crypto);
  tensorizer::set_secret("token", "t");
  EXPECT(kind_of([] { tensorizer::set_trust("ours", {}); }) ==
         tensorizer::ErrorKind::InvalidArgument);
  tensorizer::forget_trust("ours");
  tensorizer::Reader unsigned_file("b.tensors", {{"trust", "named:ours"}});
  EXPECT(kind_of([&] { unsigned_file.names(); }) == tensorizer::ErrorKind::InvalidArgument);

  reader.cancel();
  reader.names();
  reader.close();
  EXPECT(kind_of([&] { reader.names(); }) == tensorizer::ErrorKind::InvalidArgument);
  const at::Tensor memory = at::zeros({100}, at::kByte);
  EXPECT(kind_of([&] { tensorizer::Reader(memory).names(); }) ==
         tensorizer::ErrorKind::InvalidFormat);
}

void change() {
  const at::Tensor older = at::arange(1000, at::kFloat);
  const at::Tensor newer = older.clone();
  newer[7] = -1;
  tensorizer::save("older.tensors", {{"one", older}});
  tensorizer::save("newer.tensors", {{"one", newer}});
  tensorizer::delta("older.tensors", "newer.tensors", "delta.tensors");
  EXPECT(tensorizer::apply("delta.tensors", "older.tensors", "made.tensors"));
  EXPECT(tensorizer::load("made.tensors").at("one").equal(newer));
  EXPECT(tensorizer::apply("delta.tensors", "older.tensors"));
  EXPECT(!tensorizer::apply("delta.tensors", "older.tensors"));
  EXPECT(tensorizer::apply("delta.tensors", {{"one", older}}) && older.equal(newer));
}

void interrupt() {
  tensorizer::save("c.tensors", {{"one", at::ones({1})}});
  tensorizer::set_interrupt_hook([] { throw Interrupted(); });
  bool interrupted = false;
  try {
    tensorizer::load("c.tensors", {.verify = tensorizer::Verify::All});
  } catch (const Interrupted&) {
    interrupted = true;
  }
  EXPECT(interrupted);
  tensorizer::set_interrupt_hook(nullptr);
  tensorizer::set_log_hook([](const std::string&) {});
  tensorizer::set_log_hook(nullptr);
  const at::Tensor one = at::zeros({1});
  tensorizer::load_into("c.tensors", {{"one", one}});
  EXPECT(one.item<float>() == 1);
}

}  // namespace

int main() {
  write_and_read();
  change();
  interrupt();
  EXPECT(tensorizer::version() == tensorizer::kVersion);
  std::cout << tensorizer::version() << "\n";
}
