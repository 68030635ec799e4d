"""Where the metrics of a run go: a JSON object a line, and TensorBoard's event files."""
