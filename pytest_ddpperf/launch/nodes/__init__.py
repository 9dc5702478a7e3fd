"""Several processes of a launcher, such as torchrun: one is the controller, and each other node has an agent."""
