"""Judge the evidence of the simulated platform, by the same steps. This half is the verifier's and
does not ship."""

__all__ = ["judge"]
