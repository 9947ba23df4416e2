"""Where each field lies in the tables that kernels read."""
