"""Support for runs on several nodes by torchrun, srun or mpirun: a controller, and an agent on each other node."""
