// Runs one inference of an AOTInductor package that was compiled without weights and loads them
// from a URI, without Python.
//
//   serve_package PACKAGE WEIGHTS SIZE [DEVICE]
//
// The input is SIZE ones.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <string>

#include <tensorizer_ops/tensorizer.h>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: serve_package PACKAGE WEIGHTS SIZE [DEVICE]\n";
    return 2;
  }
  try {
    const c10::Device device(argc > 4 ? argv[4] : "cpu");
    torch::inductor::AOTIModelPackageLoader package(argv[1]);
    // The file may have more than the program uses, such as small constants that it contains
    // itself.
    tensorizer::load_constants(package, argv[2],
                               {.strict = false, .verify = tensorizer::Verify::Crc32});

    const c10::InferenceMode no_grad;
    const at::Tensor input = torch::ones({1, std::stol(argv[3])}, device);
    std::cout << package.run({input}).at(0).cpu() << "\n";
  } catch (const tensorizer::Error& error) {
    std::cerr << tensorizer::kind_name(error.kind()) << ": " << error.message() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
