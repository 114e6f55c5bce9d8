"""What a human's hands say."""
