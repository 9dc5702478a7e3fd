"""What a step does, counted by watching its operators, modules and optimizers, without a clock. Needs torch."""
