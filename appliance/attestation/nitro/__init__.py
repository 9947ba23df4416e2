"""AWS NitroTPM: a document that the Nitro hypervisor signs over a guest's registers."""

__all__ = ["request"]
