"""What a release of the appliance is made of: `python -m release`. Nothing of it ships."""
