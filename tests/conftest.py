"""Plugins of the whole test tree."""

pytest_plugins = ["apiserver_plugin"]
