// Runs one inference of a scripted model that loads its weights from a URI, without Python.
//
//   serve CODE WEIGHTS SIZE [DEVICE]
//
// tensorizer_ops.externalize() writes CODE and WEIGHTS. The input is SIZE ones.
#include <torch/script.h>

#include <exception>
#include <iostream>
#include <string>

#include <tensorizer_ops/tensorizer.h>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: serve CODE WEIGHTS SIZE [DEVICE]\n";
    return 2;
  }
  try {
    const c10::Device device(argc > 4 ? argv[4] : "cpu");
    torch::jit::Module model = torch::jit::load(argv[1]);
    model.eval();

    tensorizer::FillRequest request;
    request.device = device;
    request.verify = tensorizer::Verify::Crc32;
    tensorizer::load_into(model, argv[2], request);

    const c10::InferenceMode no_grad;
    const at::Tensor input = torch::ones({1, std::stol(argv[3])}, device);
    std::cout << model.forward({input}).toTensor().cpu() << "\n";
  } catch (const tensorizer::Error& error) {
    std::cerr << tensorizer::kind_name(error.kind()) << ": " << error.message() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
