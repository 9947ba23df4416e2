"""A reference key broker: releases model keys to attested appliances, by explicit rules and to
nobody else."""
