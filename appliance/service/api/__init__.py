"""The words of the OpenAI API: requests, answers, events, problems."""
