"""Plugins and settings of the whole test tree."""

from hypothesis import settings

pytest_plugins = ["apiserver_plugin"]

# How long an example takes says nothing on a busy machine.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
