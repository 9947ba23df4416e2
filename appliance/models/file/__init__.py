"""Model files: headers, block formats, tiling, pins."""
