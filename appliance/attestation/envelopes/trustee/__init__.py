"""Evidence as the attesters of Trustee hand it out, one module a platform."""
