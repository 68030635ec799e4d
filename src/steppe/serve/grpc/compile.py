"""Makes messages.pb of the .proto files beside it: `python -m steppe.serve.grpc.compile`, for developers only."""

from __future__ import annotations

import sys
from pathlib import Path

from steppe.errors import SteppeError

HERE = Path(__file__).parent
DESCRIPTORS = HERE / "messages.pb"
SOURCES = ("open_inference.proto", "feedback.proto", "seldon.proto")


def compile_protos(target: Path = DESCRIPTORS) -> Path:
    """Writes what the .proto files describe to `target`; needs grpcio-tools, which Steppe itself does not."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    # grpcio-tools have the messages of Google that ours contain.
    google = Path(protoc.__file__).with_name("_proto")
    if protoc.main(
        ["protoc", f"-I{HERE}", f"-I{google}", "--include_imports", f"--descriptor_set_out={target}", *SOURCES]
    ):
        raise SteppeError(f"the .proto files in {HERE} cannot be compiled; the messages above say why")
    return target


if __name__ == "__main__":
    print(compile_protos())
    sys.exit()
