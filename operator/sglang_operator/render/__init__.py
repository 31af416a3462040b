"""From a spec to manifests: pure functions, no client and no clock."""
