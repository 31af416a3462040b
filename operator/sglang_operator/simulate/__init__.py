"""The tuner in closed loop against a simulated server, faster than real time, with its regret and its baselines."""
