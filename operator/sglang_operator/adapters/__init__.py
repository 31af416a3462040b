"""Everything that talks to the outside: the Kubernetes API, Prometheus, server pods, the clock."""
