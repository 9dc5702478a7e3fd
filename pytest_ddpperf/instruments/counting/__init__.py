"""What a step does, counted by watching its operators, modules and optimizers; needs torch, and never a clock."""
