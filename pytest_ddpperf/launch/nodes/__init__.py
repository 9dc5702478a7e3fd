"""Several processes of a launcher, such as torchrun: one is the controller, one of every other node is its agent."""
