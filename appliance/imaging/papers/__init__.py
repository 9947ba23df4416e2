"""Documents about an image: manifest, SBOM, provenance, deployment files."""

__all__ = ["container", "kubevirt", "provenance", "releases", "sbom"]
