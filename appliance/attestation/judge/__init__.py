"""Evidence to a verdict: verification, validation against expectations, and the record of both."""
