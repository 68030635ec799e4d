"""The Open Inference Protocol over gRPC, beside the HTTP endpoint and with the same limits."""
