"""This machine as the appliance needs it: each thing that is there or lacks, with the command that
helps. It changes nothing, and asks nobody else."""

__all__ = ["examination"]
