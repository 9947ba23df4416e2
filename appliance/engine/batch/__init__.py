"""Answers that run at the same time, pass by pass: a pass is planned, run and settled."""

__all__ = ["batcher", "draft", "fixed_pass", "guesses", "head", "plan", "prompt_share", "sequence", "speculate"]
