"""What vendors sign beside evidence: certificates, lists and TCB documents, and where to ask for them."""
