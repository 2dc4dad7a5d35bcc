"""What several benchmarks need: logs to read, and a fair way to measure."""
