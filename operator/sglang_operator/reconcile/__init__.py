"""One pass over one service, and one tuning pass over all of them."""
