"""The appliance: LLM inference in a TEE that its operator cannot read and anyone can verify."""

__version__ = "0.2.0.dev0"
