"""Published checkpoints in their original files."""
