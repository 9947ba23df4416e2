"""Answers that run at the same time, pass by pass: a pass is planned, run and settled."""

__all__ = ["batcher", "draft", "kept_texts", "pass_time", "prompt_share", "sequence"]
