"""Makes messages.pb of the .proto files in src/steppe/serve/grpc: `python docs/compile_protos.py`."""

from __future__ import annotations

from pathlib import Path

SERVICES = Path(__file__).parent.parent / "src" / "steppe" / "serve" / "grpc"
DESCRIPTORS = SERVICES / "messages.pb"
SOURCES = ("open_inference.proto", "feedback.proto", "seldon.proto")


def compile_protos(target: Path = DESCRIPTORS) -> Path:
    """Writes the descriptors of the .proto files to `target`; needs grpcio-tools, which Steppe itself does not."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    # grpcio-tools come with the messages of Google that ours contain.
    google = Path(protoc.__file__).with_name("_proto")
    options = [f"-I{SERVICES}", f"-I{google}", "--include_imports", f"--descriptor_set_out={target}"]
    if protoc.main(["protoc", *options, *SOURCES]):
        raise SystemExit(f"the .proto files in {SERVICES} cannot be compiled; the messages above say why")
    return target


if __name__ == "__main__":
    print(compile_protos())
