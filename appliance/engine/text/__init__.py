"""Messages to tokens to text."""
