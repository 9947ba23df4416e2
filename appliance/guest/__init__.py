"""Process 1 of the virtual machine. Standard library only."""
