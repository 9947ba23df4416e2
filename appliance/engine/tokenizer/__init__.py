"""Text to token ids and back, from GGUF metadata alone."""
