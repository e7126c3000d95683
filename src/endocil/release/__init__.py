"""Release gate: two models compared, and rules that decide."""
