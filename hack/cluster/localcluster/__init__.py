"""A local Kubernetes cluster for development and tests; `cli` is the entry, `settings` the vocabulary."""
