"""Documents about an image: manifest, SBOM, provenance, deployment files."""
