"""Inference on the CPU: tokenizer, template, forward pass, sampler and scheduler. Knows nothing of HTTP or attestation."""
