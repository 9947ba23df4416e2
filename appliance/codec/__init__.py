"""Bytes to values and back, one spelling each, nothing malleable."""
