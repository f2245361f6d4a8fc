"""Brings the contract into what is built: the .proto files into an sdist, what protoc makes of them into a wheel.

The package holds the contract as a set of descriptors, from which protobuf makes the messages when it is imported: no
generated code that asks for one version of protobuf, and no name in the pool that a program's own stubs share.
"""

import pathlib
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ("attnd/v1/attention.proto", "attnd/v1/store.proto")


class ContractHook(BuildHookInterface):
    def initialize(self, version, build_data):
        here = pathlib.Path(self.root)
        proto = here / "proto" if (here / "proto").is_dir() else here.parents[1] / "proto"
        if self.target_name == "sdist":
            build_data["force_include"].update({str(proto / name): f"proto/{name}" for name in FILES})
            return
        if version == "editable":
            raise RuntimeError("the contract is made when the package is built: install it without --editable")
        from grpc_tools import protoc

        self.folder = tempfile.TemporaryDirectory(prefix="attnd-contract-")
        descriptors = pathlib.Path(self.folder.name) / "contract.binpb"
        options = (f"-I{proto}", f"--descriptor_set_out={descriptors}", "--include_imports")
        if protoc.main(["protoc", *options, *FILES]) != 0:
            raise RuntimeError(f"protoc could not read the contract in {proto}")
        build_data["force_include"][str(descriptors)] = "attnd/contract.binpb"

    def finalize(self, version, build_data, artifact_path):
        if self.target_name != "sdist":
            self.folder.cleanup()
