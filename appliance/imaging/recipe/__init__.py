"""What an image is made of, as `image/` says it, and the stages of a build."""
