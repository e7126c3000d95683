"""Many runs from one file: planned once, each in a process of its own, on this machine or on a cluster."""
