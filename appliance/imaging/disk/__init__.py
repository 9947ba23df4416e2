"""The bytes of a disk image: partitions, file systems, hash trees, boot files."""
