"""From observed facts to conditions: pure functions, no client and no clock."""
