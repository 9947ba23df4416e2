"""The simulated platform: the bytes of its reports. No hardware stands behind them."""

__all__ = ["abi"]
