"""Pure functions on numbers: the mean of samples, its confidence interval, and the change between two samples."""
