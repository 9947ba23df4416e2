"""The compiled library, its threads and tables, and the check at its border."""
