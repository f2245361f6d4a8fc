// attn, the command line of attnd.
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "client/cli/cli.h"

int main(int argc, char** argv) {
  // Tensors are freed and allocated again in the same sizes: keeping the pages saves more time than any copy costs.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  // What gRPC logs of a failed handshake, the command's own line of error says.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  return attnd::client::RunCommandLine(argc, argv, {std::cout, std::cerr, isatty(STDERR_FILENO) != 0});
}
