"""The bytes of a disk image: partitions, file systems, hash trees, boot files."""

__all__ = [
    "bytecode", "fat", "gpt", "initrd", "linux", "programs", "rootfs", "toolchain", "tree",
    "uki", "verity",
]
