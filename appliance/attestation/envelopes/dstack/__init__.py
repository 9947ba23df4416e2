"""Evidence as dstack hands it out."""
