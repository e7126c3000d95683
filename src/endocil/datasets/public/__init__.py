"""The paper's four public data sets."""
