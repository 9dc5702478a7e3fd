"""Support for runs on several nodes by a launcher such as torchrun: a controller, and an agent on each other node."""
