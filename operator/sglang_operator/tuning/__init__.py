"""From metric samples to a threshold: pure functions, no client and no clock."""
