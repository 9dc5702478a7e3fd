"""What steps will take: predictions, advice, and the network that they are made on."""
