"""Inference on the CPU: tokenizer, template, forward pass, sampler, scheduler. Knows no HTTP and no
attestation."""

__all__ = ["engine", "handle", "recheck", "scheduler", "second_engine"]
