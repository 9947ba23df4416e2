"""The words of the OpenAI API: requests, answers, events, problems."""

__all__ = ["answers", "dialects", "marks", "offers", "parameters", "problems", "structure", "wire"]
