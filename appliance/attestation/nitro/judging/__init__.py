"""Judge documents of AWS's Nitro hypervisor, by the same steps. This half is the verifier's and
does not ship."""

__all__ = ["judge"]
