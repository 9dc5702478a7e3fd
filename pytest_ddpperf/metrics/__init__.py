"""What a measurement amounts to: named series, a sample per launch that tells them."""
