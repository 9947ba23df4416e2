"""Commands of the documentation: each is run, or `commands.toml` says where it is, or why it cannot be."""
