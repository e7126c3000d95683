"""Public data sets: the paper's four, and CIFAR-100 for tables of the literature."""
