"""What the program does, one module for each command; every one of them ends with an `Outcome` or a `Refusal`."""
