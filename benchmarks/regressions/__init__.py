"""Public regressions of distributed training, each rebuilt as two versions of a tiny program."""
