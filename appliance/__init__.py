"""The appliance: LLM inference in a TEE that its operator cannot read and anyone can verify."""

__version__ = "0.1.0"
