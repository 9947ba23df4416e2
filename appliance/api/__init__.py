"""The words of the OpenAI API: requests, answers, events, problems."""

__all__ = [
    "adapter", "answers", "dialects", "document", "findings", "marks", "messages", "offers", "problems",
    "shapes", "structure", "wire",
]
