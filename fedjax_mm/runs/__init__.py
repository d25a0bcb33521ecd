"""Run directories: records, files, checkpoints."""
