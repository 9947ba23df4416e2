"""Documents about an image: manifest, SBOM, provenance, deployment files."""

__all__ = ["container", "fleet", "kubevirt", "provenance", "releases", "sbom"]
