"""The Open Inference Protocol and the Seldon v1 dialect over gRPC, beside HTTP and with the same limits."""
